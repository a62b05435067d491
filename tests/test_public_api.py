"""icefloe has every public name, argument and default of the official package, with listed exceptions.

`tests/data/official_api.json` is what `scripts/record-api.py` found in the official package, release 2.3.0.
"""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe._internal.lazy import read_stub
from icefloe.compatibility import OFFICIAL_VERSION
from tests.support import processes
from tests.support.api_description import describe_member, describe_value
from tests.support.source_tree import ROOT

OFFICIAL = json.loads((ROOT / "tests" / "data" / "official_api.json").read_text(encoding="utf-8"))

# Official names that we do without, or have in another form, and why.
OTHERWISE = {
    "dask:computing_meta": "a helper of theirs",
    "dask:merge_sessions_array_kwargs": "a helper of theirs",
    "xarray:LazyArrayWriter": "a helper of theirs",
    "xarray:is_dask_collection": "a helper of theirs",
    ":ObjectStoreConfig._repr_html_": "each variant has it, and only variants have instances",
    ":ManifestSplitCondition.AnyArray": "a function where theirs is a class; both are called",
    ":ManifestSplittingConfig.to_dict": "a method, whose self theirs calls config",
}

# Keyword-only arguments that official functions have only here. Their defaults keep the official behaviour.
_STATISTICS = frozenset({"*collect_statistics=False"})
_CACHE = frozenset({"*disk_cache=None"})
ADDED = {
    ":ForkSession.commit": _STATISTICS,
    ":ForkSession.commit_async": _STATISTICS,
    ":ManifestConfig": frozenset({"*pack_small_arrays=None"}),
    **{
        f":Repository.{name}{twin}": _CACHE
        for name in ("create", "open", "open_or_create")
        for twin in ("", "_async")
    },
    ":Repository.transaction": _STATISTICS,
    ":Repository.writable_session": _STATISTICS,
    ":Repository.writable_session_async": _STATISTICS,
    ":Session.commit": _STATISTICS,
    ":Session.commit_async": _STATISTICS,
    "xarray:to_icechunk": _STATISTICS | {"*solver=None"},
}

# Made by other calls: whoever constructs one hands over something of the package's own.
NOT_CONSTRUCTED = {":Repository", ":Session", ":ForkSession", ":IcechunkStore", ":Storage"}


def names() -> Iterator[str]:
    """Yield every official name, and every member of an official class."""
    for module, public in OFFICIAL["modules"].items():
        for name, description in public.items():
            yield f"{module}:{name}"
            yield from (f"{module}:{name}.{member}" for member in description.get("members", ()))


def owner(name: str) -> str:
    """Return the class of a member; the name itself for anything else."""
    return name.partition(".")[0]


def official(name: str) -> dict[str, Any]:
    """Return the record of an official name; empty if the package itself also has it."""
    module, public, member = _parts(name)
    description: dict[str, Any] = OFFICIAL["modules"][module][public]
    return description["members"][member] if member else description


def ours(name: str) -> dict[str, Any]:
    """Return the same of our package; AttributeError or ModuleNotFoundError where there is none."""
    module, public, member = _parts(name)
    found = getattr(importlib.import_module(f"icefloe.{module}" if module else "icefloe"), public)
    if not member:
        return describe_value(found)
    return {"kind": "value"} if _is_instance_attribute(found, member) else describe_member(found, member)


def _is_instance_attribute(cls: type, member: str) -> bool:
    return any(member in vars(base).get("__annotations__", ()) for base in cls.__mro__)


def _parts(name: str) -> tuple[str, str, str]:
    module, _, rest = name.partition(":")
    public, _, member = rest.partition(".")
    return module, public, member


def expected_names() -> list[str]:
    left_out = OTHERWISE.keys()
    return sorted(name for name in names() if name not in left_out and owner(name) not in left_out)


@pytest.mark.parametrize("public", sorted({name.partition(".")[0] for name in expected_names()}))
def test_every_official_name_and_its_members_exist(public: str) -> None:
    for name in (each for each in expected_names() if each.partition(".")[0] == public):
        expected = official(name)

        found = ours(name)

        if not expected:
            continue
        assert (name, found["kind"]) == (name, expected["kind"])
        assert (name, found.get("async")) == (name, expected.get("async"))
        if expected.get("arguments") and name not in NOT_CONSTRUCTED:
            arguments = _remove_added(name, found["arguments"])
            assert _comparable(arguments, expected["arguments"]) == expected["arguments"], name


def _remove_added(name: str, arguments: str) -> str:
    """Remove the arguments that only our function has; all of them must exist."""
    given, added = arguments.split(", "), ADDED.get(name, frozenset())
    assert added <= set(given)
    return ", ".join(each for each in given if each not in added)


def _comparable(mine: str, theirs: str) -> str:
    """Our arguments, with theirs in places where ours allow the same calls."""
    ours, others = mine.split(", "), theirs.split(", ")
    if len(ours) != len(others):
        return mine
    return ", ".join(other if _allows(own, other) else own for own, other in zip(ours, others, strict=True))


def _allows(own: str, other: str) -> bool:
    """Return whether our argument allows the same calls, for example with an additional default."""
    name, _, default = other.partition("=")
    same_name = own.partition("=")[0] == name
    return (name.startswith("_") and name[1:].isdigit()) or (same_name and default in ("", "Ellipsis"))


def test_exceptions_to_the_official_api_are_official_names() -> None:
    assert set(OTHERWISE) <= set(names())


def test_recorded_api_matches_the_official_version() -> None:
    assert OFFICIAL["version"] == OFFICIAL_VERSION


@pytest.mark.parametrize(
    "package", ["icefloe", "icefloe.config", "icefloe.ingest", "icefloe.spark", "icefloe.storage"]
)
def test_every_public_name_is_visible_to_type_checkers(package: str) -> None:
    module = importlib.import_module(package)
    path = str(module.__file__)
    imported = {
        str(alias.asname): node.module
        for node in ast.parse(Path(f"{path}i").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert read_stub(path) == imported
    assert set(module.__all__) <= set(imported)
    assert all(hasattr(module, name) for name in imported)
    assert set(imported) <= set(dir(module))
    hidden = {name for name in module.__all__ if (Path(path).parent / f"{name}.py").exists()}
    assert not hidden, "the import of a module would hide the function of the same name"


def test_star_import_needs_no_optional_package() -> None:
    code, printed = processes.run("from icefloe import *; print(Repository.__name__)")

    assert (code, printed.strip()) == (0, "Repository"), printed


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        icefloe.unheard_of  # type: ignore[attr-defined]  # noqa: B018


def test_import_loads_no_heavy_package() -> None:
    heavy = {"zarr", "numpy", "obstore", "logging", "yaml", "zstandard", "asyncio"}
    heavy |= {"icefloe._internal.redaction", "icefloe._internal.extras"}  # which import re and urllib
    code = "import sys, icefloe; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert not heavy & set(loaded.split())
