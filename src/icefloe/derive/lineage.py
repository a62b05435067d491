"""Lineage: what a derived array was computed from, and whether its inputs changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe._internal.paths import normalize
from icefloe._internal.report import Report
from icefloe.core.fingerprints import combine, hash_bytes
from icefloe.derive.arrays import StoredArray, find_array, get_array
from icefloe.derive.outputs import records_group
from icefloe.derive.records import Records, read_records
from icefloe.errors import ErrorKind, NodeNotFoundError
from icefloe.repository import Repository
from icefloe.session import Session

METADATA = "icefloe_derive"
"""Key of the commit metadata that describes a run."""


@dataclass(frozen=True, slots=True)
class Lineage(Report):
    """The origin of a derived array."""

    path: str
    """Path of the array."""
    function: str
    """Name of the function in the recipe."""
    inputs: tuple[Mapping[str, Any], ...]
    """Name, path, repository and snapshot of each input."""
    recipe: Mapping[str, Any]
    """The recipe of the array, with its defaults filled in."""
    commit: str | None
    """The latest commit that changed the array through its recipe; None if it has expired."""
    versions: Mapping[str, str]
    """Versions of the software that computed it last."""
    is_current: bool
    """False if an input in this repository, or the array itself, changed since it was computed."""


def read_lineage(repo: Repository, array: str, *, snapshot_id: str | None = None) -> Lineage:
    """Read where a derived array comes from. No code of its recipe is imported.

    Parameters
    ----------
    repo
        The repository of the array.
    array
        The path of the array.
    snapshot_id
        The version to read. By default the tip of `main`.

    Returns
    -------
    Lineage
        Inputs, recipe, commit, and whether the array is up to date. Inputs in other repositories and inputs
        at a fixed version are not compared.

    Raises
    ------
    NodeNotFoundError
        If there is no such array, or if it was not derived.
    """
    path = normalize("/" + array)
    session = (
        repo.readonly_session("main")
        if snapshot_id is None
        else repo.readonly_session(snapshot_id=snapshot_id)
    )
    found = get_array(session, path, "lineage")
    records = read_records(session, f"{records_group(path)}/records", len(found.shape))
    if records is None:
        raise NodeNotFoundError(
            f"{path} was not derived by a recipe, so it has no lineage", kind=ErrorKind.NODE_NOT_FOUND
        )
    attributes = records.attributes
    recipe = attributes["recipe"]
    return Lineage(
        path,
        str(recipe["function"]),
        tuple(
            {key: each[key] for key in ("name", "array", "repository", "snapshot")}
            for each in attributes["inputs"]
        ),
        recipe,
        _find_commit(repo, session.snapshot_id, path),
        attributes["versions"][-1],
        _is_current(session, found, records),
    )


def digest_input(array: StoredArray) -> str:
    """Hash everything that a derived array could take from an input."""
    lanes = hash_bytes(array.fingerprints().tobytes())
    for each in (array, *array.coordinates.values(), *array.auxiliary.values()):
        lanes = combine(lanes, each.meaning(all_attributes=True), hash_bytes(str(each.shape).encode()))
        if each is not array:
            lanes = combine(lanes, hash_bytes(each.fingerprints().tobytes()))
    return lanes.tobytes().hex()


def _is_current(session: Session, array: StoredArray, records: Records) -> bool:
    own = array.fingerprints()
    if own.shape != records.own.shape or not (own == records.own).all():
        return False
    for each in records.attributes["inputs"]:
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
