"""References are spilled for the task that writes them, and deleted when the job ends."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import IcechunkError, Repository, in_memory_storage
from icefloe.ingest.inspect import inspect_files as looking
from icefloe.ingest.inspect import reference_spill
from icefloe.ingest.inspect.reference_spill import (
    ParsedReferences,
    ReferencedVariable,
    Spill,
    SpillWriter,
    read_spilled,
)
from icefloe.ingest.write import references as referring
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences
from tests.support.ingest.files import chunked, expected, new_repo, read_all, run

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def objects(repo: Repository) -> set[str]:
    return {info.key for info in repo.storage.list_prefix("chunks")}


@st.composite
def parsed(draw: st.DrawFn) -> ParsedReferences:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    versions = st.tuples(
        st.none() | st.integers(0, 9), st.none() | st.text("ab"), st.sampled_from([None, moment])
    )
    found = draw(st.lists(versions, min_size=1, max_size=3))
    sources = tuple(Source(f"file:///{number}.nc", *each) for number, each in enumerate(found))
    variables = {}
    for name in draw(st.sets(st.sampled_from("abc"))):
        grid = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
        places = np.indices(grid, np.uint32).reshape(len(grid), -1).T
        kept = np.array(draw(st.lists(st.booleans(), min_size=len(places), max_size=len(places))), bool)
        count = int(kept.sum())
        codes = draw(st.lists(st.integers(0, len(sources) - 1), min_size=count, max_size=count))
        numbers = np.arange(count, dtype=np.uint64) * np.uint64(2**40)
        inline = {tuple(place): bytes(place) for place in places[~kept].tolist()[:2]}
        chunks = ChunkReferences.of(places[kept], numbers, numbers + np.uint64(1), codes, inline)
        variables[name] = ReferencedVariable(grid, tuple(2 for _ in grid), chunks)
    return ParsedReferences(sources, variables)


def facts(of: ParsedReferences) -> Any:
    return of.sources, {
        name: (
            each.grid_shape,
            each.chunk_shape,
            [getattr(each.chunks, column).tolist() for column in ("coords", "sources", "offsets", "lengths")],
            each.chunks.inline_coords.tolist(),
            each.chunks.inline,
        )
        for name, each in of.variables.items()
    }


@given(st.lists(parsed(), max_size=4), st.integers(1, 400))
def test_spilled_references_are_read_back(found: list[ParsedReferences], object_bytes: int) -> None:
    storage = in_memory_storage()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reference_spill, "_OBJECT_BYTES", object_bytes)
        writer = SpillWriter(storage)
        for number, each in enumerate(found):
            writer.put(number, each)
        writer.flush()

    back = read_spilled(writer.ranges.values(), storage)
    assert [facts(back[writer.ranges[number]]) for number in range(len(found))] == list(map(facts, found))

    with Spill(storage) as spill:
        spill.track(writer.ranges.values())
    assert not list(storage.list_prefix("chunks"))
    assert read_spilled(writer.ranges.values(), storage) == {}


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the names of the files that are parsed, in order."""
    names: list[str] = []
    for module, function in ((looking, "open_virtualized"), (referring, "virtualize_source")):
        usual = getattr(module, function)

        def counted(source: Any, *more: Any, usual: Any = usual) -> Any:
            names.append(Path(source.url).name)
            return usual(source, *more)

        monkeypatch.setattr(module, function, counted)
    return names


@pytest.mark.parametrize("options", [{}, {"commit_every": 2}, {"manifest_references": 3}])
def test_files_are_parsed_once(tmp_path: Path, parses: list[str], options: dict[str, Any]) -> None:
    files = chunked(tmp_path, 4, 2, 2)
    repo = new_repo(tmp_path)

    run(repo, files, mode="virtual", **options)

    assert sorted(parses) == ["000.nc", "004.nc", "006.nc"]
    xr.testing.assert_identical(read_all(repo), expected(files))
    assert repo.garbage_collect(datetime.now(UTC)).chunks_deleted == 0


def test_files_are_parsed_again_if_the_spill_was_collected(
    tmp_path: Path, parses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = chunked(tmp_path, 4, 2)
    repo = new_repo(tmp_path)
    usual = reference_spill.read_spilled

    def gone(wanted: Any, storage: Any) -> Any:
        storage.delete([info.key for info in storage.list_prefix("chunks")])
        return usual(wanted, storage)

    monkeypatch.setattr(referring, "read_spilled", gone)
    run(repo, files, mode="virtual")

    assert sorted(parses) == ["000.nc", "000.nc", "004.nc", "004.nc"]
    xr.testing.assert_identical(read_all(repo), expected(files))


def test_failed_job_leaves_only_its_inspection(tmp_path: Path) -> None:
    files = chunked(tmp_path, 4, 2)
    (tmp_path / "bad.nc").write_bytes(b"nothing")
    repo = new_repo(tmp_path)

    with pytest.raises(IcechunkError, match="cannot be ingested"):
        run(repo, [*files, tmp_path / "bad.nc"], mode="virtual")

    assert len(objects(repo)) == 1


def test_dry_run_spills_nothing(tmp_path: Path) -> None:
    files = chunked(tmp_path, 4, 2)
    repo = new_repo(tmp_path)

    assert run(repo, files, mode="virtual", dry_run=True).plan is not None

    assert not objects(repo)
