"""A recipe: an ingest written down in YAML, to be kept with the code and run again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.checks import DEFAULT_CHECKS, SHORT_FORM, Check
from icefloe.ingest.options import Options, make_options

_URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_KEYS = ("sources", "repository", "repository_options", "checks", "spark", "options")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a file of YAML asks for. Paths in it begin at its folder."""

    sources: tuple[str, ...]
    repository: str
    repository_options: Mapping[str, Any] = field(repr=False)
    options: Options
    master: str
    settings: Mapping[str, str]


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe; InvalidInputError with the place of what is wrong."""
    file = Path(path)
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise _wrong(file, f"it is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise _wrong(file, "it must be a mapping with sources and repository")
    unknown = [str(key) for key in found if key not in _KEYS]
    if unknown:
        raise _wrong(file, f"it has no place for {', '.join(unknown)}, only for {', '.join(_KEYS)}")
    for key in ("sources", "repository"):
        if not found.get(key):
            raise _wrong(file, f"it must say {key}")
    sources = [found["sources"]] if isinstance(found["sources"], str) else list(found["sources"])
    spark = _mapping(file, found, "spark")
    options = _mapping(file, found, "options")
    return Recipe(
        tuple(_placed(file, str(source)) for source in sources),
        _placed(file, str(found["repository"])),
        _mapping(file, found, "repository_options"),
        make_options(checks=_checks(file, found.get("checks", list(DEFAULT_CHECKS))), **options),
        str(spark.get("master", "local[*]")),
        {str(name): str(value) for name, value in dict(spark.get("settings") or {}).items()},
    )


def _mapping(file: Path, found: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key) or {}
    if not isinstance(value, dict):
        raise _wrong(file, f"{key} must be a mapping")
    return value


def _checks(file: Path, given: Any) -> tuple[Check, ...]:
    """Names, or mappings of one name to what it needs."""
    if not isinstance(given, list):
        raise _wrong(file, "checks must be a list")
    checks = []
    for each in given:
        if isinstance(each, str):
            checks.append(Check(each))
        elif isinstance(each, dict) and len(each) == 1:
            ((name, needs),) = each.items()
            if isinstance(needs, str) and name in SHORT_FORM:
                needs = {SHORT_FORM[name]: needs}
            if needs is not None and not isinstance(needs, dict):
                raise _wrong(file, f"check {name}: {needs!r} does not say what it needs")
            try:
                checks.append(Check(str(name), **(needs or {})))
            except TypeError as error:
                raise _wrong(file, f"check {name}: {error}") from error
        else:
            raise _wrong(file, f"{each!r} is no check: write a name, or a name with what it needs")
    return tuple(checks)


def _placed(file: Path, name: str) -> str:
    return name if _URL.match(name) else str(file.absolute().parent / name)


def _wrong(file: Path, text: str) -> InvalidInputError:
    return InvalidInputError(f"{file}: {text}", ErrorKind.INVALID_COMMIT_CONFIGURATION)
