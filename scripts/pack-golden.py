#!/usr/bin/env python3
"""Pack golden repositories into tests/data/golden: one archive each, the same bytes for the same contents.

    scripts/pack-golden.py FOLDER

FOLDER holds the golden repositories, a folder each with `repo/` and `expected.json`.
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "tests" / "data" / "golden"
PREFIXES = ("v1-", "v2-", "migrated-", "foreign-", "handmade-")
MODIFIED = 1_700_000_000  # what the references with a last-modified checksum expect of their files


def main(source: Path) -> None:
    """Pack every repository that the tests use."""
    for folder in sorted(path for path in source.iterdir() if path.name.startswith(PREFIXES)):
        packed = lzma.compress(archive(folder), preset=9 | lzma.PRESET_EXTREME)
        (TARGET / f"{folder.name}.tar.xz").write_bytes(packed)
        print(f"{folder.name}: {len(packed)} bytes")


def archive(folder: Path) -> bytes:
    """A tar archive of all files below a folder, without anything that differs from machine to machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size, entry.mtime = path.stat().st_size, MODIFIED
            with path.open("rb") as contents:
                tar.addfile(entry, contents)
    return buffer.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
