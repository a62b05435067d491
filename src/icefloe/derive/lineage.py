"""The lineage of derived arrays: their inputs, and whether the inputs have changed since."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from icefloe._internal.paths import DERIVED, join, normalize
from icefloe._internal.report import Report
from icefloe.core.fingerprints import combine, hash_bytes
from icefloe.derive.arrays import StoredArray, find_array, get_array
from icefloe.derive.recipe import DeriveRecipe, OutputSpec, parse_output
from icefloe.derive.records import RECORDS, records_group
from icefloe.errors import ErrorKind, Hint, InvalidInputError, NodeNotFoundError
from icefloe.repository import Repository
from icefloe.session import Session

METADATA = "icefloe_derive"
"""The commit metadata key under which a run is described."""
_INPUT_KEYS = frozenset(("name", "array", "repository", "snapshot", "pinned", "digest"))


@dataclass(frozen=True, slots=True)
class Lineage(Report):
    """The lineage of a derived array: its recipe, its inputs, and whether it is up to date."""

    path: str
    """The path of the array."""
    function: str
    """The name of the function in the recipe."""
    inputs: tuple[Mapping[str, Any], ...]
    """The name, path, repository and snapshot of each input."""
    recipe: Mapping[str, Any]
    """The recipe of the array, including defaults."""
    commit: str | None
    """The latest commit in which a run changed the array; None if that commit has expired."""
    versions: Mapping[str, str]
    """The software versions with which the array was last computed."""
    is_current: bool
    """False if an input in this repository, or the array itself, has changed since it was computed."""


def read_lineage(repo: Repository, array: str, *, snapshot_id: str | None = None) -> Lineage:
    """Read the lineage of a derived array, without importing user code from its recipe.

    Parameters
    ----------
    repo
        The repository of the array.
    array
        The path of the array, or of the group of the same name that contains it: `t2m_daily` also means
        `t2m_daily/t2m_daily`.
    snapshot_id
        The version to read. By default the tip of `main`.

    Returns
    -------
    Lineage
        Inputs, recipe, commit, and whether the array is up to date. Inputs in other repositories or at a
        fixed version are not checked.

    Raises
    ------
    NodeNotFoundError
        If the array does not exist or is not a derived array.
    """
    path = normalize("/" + array)
    session = (
        repo.readonly_session("main")
        if snapshot_id is None
        else repo.readonly_session(snapshot_id=snapshot_id)
    )
    inner = join(path, path.rpartition("/")[2])
    if find_array(session, path) is None and find_array(session, inner) is not None:
        path = inner
    get_array(session, path, "lineage")
    found = find_lineage(repo, session, path)
    if found is None:
        raise NodeNotFoundError(
            f"{path} was not derived by a recipe, so it has no lineage", kind=ErrorKind.NODE_NOT_FOUND
        )
    return found


def find_lineage(repo: Repository, session: Session, path: str) -> Lineage | None:
    """Return the lineage of the array at a path, or None if it is not a derived array."""
    about = find_attributes(session, path)
    if about is None:
        return None
    return Lineage(
        path,
        str(about["function"]),
        tuple(
            {key: each[key] for key in ("name", "array", "repository", "snapshot")}
            for each in about["inputs"]
        ),
        about["recipe"],
        _find_commit(repo, session.snapshot_id, path),
        about["versions"][-1],
        _is_current(session, path, about),
    )


def list_derived(session: Session) -> list[str]:
    """List the paths of all derived arrays."""
    paths = [
        each[len(DERIVED) : -len(RECORDS)]
        for each in session._workspace.below(DERIVED)
        if each.endswith(RECORDS)
    ]
    return [path for path in paths if find_attributes(session, path) is not None]


def find_attributes(session: Session, path: str) -> Mapping[str, Any] | None:
    """Return the attributes that describe the lineage of an array, or None if it is not a derived array."""
    found = find_array(session, f"{records_group(path)}{RECORDS}")
    if found is None or find_array(session, path) is None or not _is_description(found.attributes):
        return None
    return found.attributes


def _is_description(found: Mapping[str, Any]) -> bool:
    """Return True if attributes have the form that a run writes. They are untrusted, because anybody may
    write to a repository.
    """
    inputs, versions = found.get("inputs"), found.get("versions")
    return (
        {"name", "path", "function", "level", "own"} <= found.keys()
        and isinstance(found.get("recipe"), Mapping)
        and isinstance(inputs, list)
        and all(isinstance(each, Mapping) and each.keys() >= _INPUT_KEYS for each in inputs)
        and all(isinstance(each["array"], str) for each in inputs)
        and isinstance(versions, list)
        and bool(versions)
        and all(isinstance(each, Mapping) for each in versions)
    )


def stored_recipe(repo: Repository, allowed: Collection[str], branch: str = "main") -> DeriveRecipe:
    """Combine the recipes of all derived arrays on a branch into one recipe.

    A stored recipe could name arbitrary code, so only functions in `allowed` modules are accepted.
    """
    session = repo.readonly_session(branch)
    outputs: dict[str, OutputSpec] = {}
    for path in list_derived(session):
        about = find_attributes(session, path) or {}
        spec = parse_output(f"{path}: stored recipe", str(about["name"]), about["recipe"])
        for text in spec.code:
            _check_allowed(path, text, allowed)
        outputs[str(spec.path)] = replace(spec, branch=branch)
    names = [each.name for each in outputs.values()]
    distinct = [
        each if names.count(each.name) == 1 else replace(each, name=path.strip("/"))
        for path, each in outputs.items()
    ]
    if not distinct:
        raise NodeNotFoundError(
            f"there are no derived arrays on {branch}; run a recipe to create them",
            kind=ErrorKind.NODE_NOT_FOUND,
        )
    return DeriveRecipe("", tuple(distinct), Path.cwd())


def _check_allowed(path: str, text: str, allowed: Collection[str]) -> None:
    module = text.partition(":")[0]
    if not any(module == each or module.startswith(f"{each}.") for each in allowed):
        raise InvalidInputError(
            f"{path} is computed by {text}, which is not imported because only the repository names it",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        ).with_hint(Hint("pass its recipe file, or {allow_module}", allow_module=module))


def digest_input(array: StoredArray) -> str:
    """Hash everything about an input array that can affect derived arrays."""
    lanes = hash_bytes(array.fingerprints().tobytes())
    for each in (array, *array.coordinates.values(), *array.auxiliary.values()):
        lanes = combine(lanes, each.meaning(all_attributes=True), hash_bytes(str(each.shape).encode()))
        if each is not array:
            lanes = combine(lanes, hash_bytes(each.fingerprints().tobytes()))
    return lanes.tobytes().hex()


def _is_current(session: Session, path: str, about: Mapping[str, Any]) -> bool:
    array = get_array(session, path, "lineage")
    if digest_input(array) != about["own"]:
        return False
    for each in about["inputs"]:
        if each["repository"] is not None or each["pinned"]:
            continue
        found = find_array(session, each["array"])
        if found is None or digest_input(found) != each["digest"]:
            return False
    return True


def _find_commit(repo: Repository, snapshot_id: str, path: str) -> str | None:
    for info in repo.ancestry(snapshot_id=snapshot_id):
        about = info.metadata.get(METADATA)
        outputs = about.get("outputs", []) if isinstance(about, dict) else []
        for each in outputs:
            if each.get("path") == path and (each.get("recomputed") or each.get("moved")):
                return info.id
    return None
