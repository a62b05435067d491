"""Archives at random against `open_mfdataset`.

    python -m tests.support.ingest.fuzz --seeds 0-300 --mode virtual

Each seed is an archive of its own. What an ingest makes of it must be what xarray makes of it, or a refusal
that docs/how-to/ingest.md has.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from icefloe import IcechunkError
from tests.support.ingest.archives import Archive
from tests.support.ingest.files import FUTURE, PRESENT, assert_same, new_repo, read_all, run
from tests.support.ingest.mixed_archives import MixedArchive
from tests.support.ingest.odd_archives import OddArchive

KINDS: dict[str, Callable[[Path, int], Any]] = {
    "usual": Archive,
    "usual-alike": partial(Archive, alike=True),
    "odd": OddArchive,
    "alike": partial(OddArchive, alike=True),
    "mixed": MixedArchive,
    "mixed-alike": partial(MixedArchive, alike=True),
}
REFUSALS = (
    "several files have .* at the same position",
    "is boolean and some files lack it",
    "Zarr attributes cannot describe its values",
)
CANNOT_REFER = "cannot be referenced"


def outcome(
    folder: Path,
    kind: str,
    seed: int,
    mode: str,
    base: str | None = None,
    combining: Mapping[str, Any] = PRESENT,
) -> str:
    """Ingest one archive: `the same`, or who refuses it and why. AssertionError if results differ.

    With a `base`, files are made of that one. `combining` are options of xarray and of the ingest.
    """
    archive = KINDS[kind](folder / "files", seed, **({} if base is None else {"base": base}))
    engine = getattr(archive, "engine", "h5netcdf")
    try:
        with xr.open_mfdataset(
            archive.files, engine=engine, **{**combining, **archive.xarray_options}
        ) as opened:
            wanted = opened.load()
    except Exception as error:  # noqa: BLE001 - whatever xarray does not like
        return f"xarray refuses: {type(error).__name__}"
    options = {**combining, **archive.options}
    if mode != "native":
        options.pop("chunks", None)
        options.pop("shards", None)
    repo = new_repo(folder)
    try:
        report = run(repo, archive.files, mode=mode, engine=engine, **options)
    except IcechunkError as error:
        refusals = (*REFUSALS, CANNOT_REFER) if mode == "virtual" else REFUSALS
        known = next((each for each in refusals if re.search(each, str(error))), None)
        if known is None:
            raise
        detail = re.search(f"{CANNOT_REFER}: (.{{,45}})", str(error))
        return f"refused: {known} {detail[1] if detail else ''}"
    assert report.ok, report.checks
    found = read_all(repo)
    for name in dict.fromkeys(archive.texts):  # Zarr has no missing text, and a type of its own for text
        if name in wanted:
            wanted[name] = _as_text(wanted[name])
            found[name] = _as_text(found[name])
    for name in archive.packed_by_float32 if mode == "virtual" else ():
        if name in found:  # JSON does not tell how many bits a number has
            found[name] = found[name].astype("f4", keep_attrs=True)
    for name in found.data_vars if mode == "virtual" else ():
        if found[name].dtype.kind in "iub" and wanted[name].dtype.kind == "f":
            # xarray makes room for missing values where files are merged, even if there are none.
            found[name] = found[name].astype(wanted[name].dtype, keep_attrs=True)
    assert_same(found, wanted)
    return "the same"


def _as_text(array: xr.DataArray) -> xr.DataArray:
    values = [
        each.decode() if isinstance(each, bytes) else "" if each != each or each is None else str(each)
        for each in array.values.ravel().tolist()
    ]
    return array.copy(data=np.array(values, object).reshape(array.shape))


def main() -> int:
    """Run all seeds, and say how many came to what."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-50")
    parser.add_argument("--mode", default="native")
    parser.add_argument("--kind", default="usual")
    parser.add_argument("--base", help="a NetCDF file that those of mixed archives are parts of")
    parser.add_argument("--future", action="store_true", help="combine with xarray's future defaults")
    parser.add_argument("--show", action="store_true", help="print what went wrong at length")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    counts: Counter[str] = Counter()
    failed = []
    warnings.simplefilter("ignore")
    for seed in range(int(first), int(last or first) + 1):
        folder = Path(tempfile.mkdtemp(prefix="icefloe-fuzz-"))
        try:
            how = FUTURE if given.future else PRESENT
            counts[outcome(folder, given.kind, seed, given.mode, given.base, how)] += 1
        except Exception as error:  # noqa: BLE001 - counted, and the exit code tells
            failed.append(seed)
            counts["WRONG"] += 1
            text = traceback.format_exc() if given.show else " ".join(str(error).split())[:300]
            sys.stdout.write(f"{given.kind} seed {seed}, {given.mode}: {type(error).__name__}: {text}\n")
            sys.stdout.flush()
        finally:
            shutil.rmtree(folder)
    for text, count in counts.most_common():
        sys.stdout.write(f"{count:5} {text}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
