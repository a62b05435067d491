"""The diagrams of the documentation. `python -m docs._site.diagrams` writes them to docs/images; a test compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs._site.drawing import Drawing

FOLDER = Path(__file__).resolve().parents[1] / "images"


def overview() -> Drawing:
    """Draw what icefloe is for: the picture of the README."""
    d = Drawing(
        860,
        250,
        "Files are ingested into a versioned repository, which xarray, SQL and other Icechunk readers use",
    )
    d.box(10, 30, 170, 46, "NetCDF, GRIB, HDF5", "~GeoTIFF, Zarr, kerchunk", tone="amber")
    d.box(10, 102, 170, 46, "xarray, dask, zarr", "~your own programs", tone="amber")
    d.box(10, 174, 170, 46, "Spark data frames", "~SQL results", tone="amber")
    d.frame(300, 12, 260, 226, "repository: a folder or a bucket", "blue")
    d.box(325, 44, 210, 40, "branch main", tone="green")
    for number, x in enumerate((345, 400, 455, 510)):
        d.circle(x, 118, 11)
        if number:
            d.arrow((x - 12, 118), (x - 43, 118))
    d.arrow((510, 84), (510, 106))
    d.text(430, 155, "snapshots", anchor="middle", kind="soft")
    for x in range(330, 530, 26):
        for y in (170, 196):
            d.box(x, y, 20, 20, tone="blue")
    d.text(430, 232, "chunks, shared between snapshots", anchor="middle", kind="soft")
    d.arrow((180, 53), (298, 90))
    d.text(240, 58, "ingest", kind="soft")
    d.arrow((180, 125), (298, 125), label="commit")
    d.arrow((180, 197), (298, 160))
    d.text(240, 198, "write", kind="soft")
    d.box(680, 30, 170, 46, "xarray, zarr, dask", "~at any version", tone="violet")
    d.box(680, 102, 170, 46, "SQL on Spark", "~icefloe sql", tone="violet")
    d.box(680, 174, 170, 46, "icechunk, GDAL", "~icechunk-js", tone="violet")
    for y, start in ((53, 90), (125, 125), (197, 160)):
        d.arrow((562, start), (678, y))
    return d


def layers() -> Drawing:
    """Draw the packages, each of which imports only from those below it."""
    d = Drawing(760, 396, "Layers of the code: each imports only from layers below")
    rows = [
        ("cli", "commands, output, exit codes", "violet"),
        ("spark", "sessions, data source, executor", "violet"),
        ("ingest · query · export · virtual", "stages of an ingest, SQL scans, parsers", "green"),
        ("repository · session · store", "the public API, equal to icechunk's", "blue"),
        ("core · maintenance · legacy", "commits, refs, merges, gc, verify", "blue"),
        ("format · encoding", "bytes in, values out; no I/O", "amber"),
        ("storage", "bytes in folders and object stores", "amber"),
    ]
    for number, (name, about, tone) in enumerate(rows):
        y = 12 + 53 * number
        if name.startswith("format"):
            d.box(60, y, 315, 44, name, f"~{about}", tone=tone)
        elif name == "storage":
            d.box(385, y - 53, 315, 44, name, f"~{about}", tone=tone)
        else:
            d.box(60, y, 640, 44, name, f"~{about}", tone=tone)
    d.box(60, 330, 640, 44, "_internal", "~ids, executors, retries, tables", tone="plain")
    d.arrow((30, 20), (30, 370))
    d.text(30, 390, "imports", anchor="middle", kind="soft")
    return d


def on_disk() -> Drawing:
    """Draw the objects of a repository, and how they point at each other."""
    d = Drawing(
        860,
        330,
        "Objects of a repository: the repo file points at snapshots, these at manifests, these at chunks",
    )
    d.box(10, 20, 150, 64, "repo", "~branches, tags,", "~history, config", tone="green")
    d.text(85, 100, "the only object that", anchor="middle", kind="soft")
    d.text(85, 116, "is ever replaced", anchor="middle", kind="soft")
    for number, y in enumerate((20, 130, 240)):
        d.box(
            230,
            y,
            170,
            64,
            ("snapshots/V3…", "snapshots/V2…", "snapshots/V1…")[number],
            "~all arrays and groups,",
            "~their zarr.json",
            tone="blue",
        )
    d.arrow((160, 49), (228, 49), label="main")
    d.arrow((160, 60), (195, 60), (195, 159), (228, 159), label="tag v1.0")
    d.arrow((315, 84), (315, 128), label="parent")
    d.arrow((315, 194), (315, 238), label="parent")
    d.box(470, 20, 160, 44, "manifests/B…", "~chunk → location", tone="violet")
    d.box(470, 144, 160, 44, "manifests/A…", "~chunk → location", tone="violet")
    d.arrow((400, 42), (468, 42))
    d.arrow((400, 62), (468, 150))
    d.arrow((400, 166), (468, 166))
    d.arrow((400, 262), (440, 262), (440, 178), (468, 178))
    for number in range(5):
        d.box(720, 12 + 52 * number, 130, 38, f"chunks/{'PQRST'[number]}…", tone="amber")
    d.arrow((630, 34), (718, 31))
    d.arrow((630, 48), (718, 83))
    d.arrow((630, 158), (718, 135))
    d.arrow((630, 166), (718, 187))
    d.arrow((630, 176), (718, 239))
    d.box(470, 240, 160, 64, "archive/x.nc", "~virtual chunks stay", "~in their files", tone="plain")
    d.arrow((550, 188), (550, 238), dashed=True)
    d.text(850, 300, "transactions/ has what", anchor="end", kind="soft")
    d.text(850, 318, "each commit changed", anchor="end", kind="soft")
    return d


def commit() -> Drawing:
    """Draw the steps of a commit, and what happens if another writer was first."""
    d = Drawing(
        860,
        270,
        "A commit writes chunks, manifests, a snapshot, and then moves the branch with a conditional write",
    )
    steps = [
        ("1  chunks", "~while you write", "amber"),
        ("2  manifests", "~where chunks are", "violet"),
        ("3  snapshot", "~arrays, groups,", "blue"),
        ("4  move the branch", "~only if nobody else", "green"),
    ]
    more = {2: "~and transaction log", 3: "~moved it"}
    for number, (title, about, tone) in enumerate(steps):
        x = 10 + 190 * number
        lines = (title, about, more[number]) if number in more else (title, about)
        d.box(x, 30, 160, 66, *lines, tone=tone)
        if number:
            d.arrow((x - 30, 63), (x - 2, 63))
    d.arrow((740, 63), (778, 63))
    d.box(780, 38, 70, 50, "done", tone="green")
    d.box(580, 180, 160, 60, "rebase", "~no conflict: put the", "~changes on the new tip", tone="blue")
    d.box(300, 180, 200, 60, "ConflictError", "~same chunk or node", "~changed by both", tone="red")
    d.arrow((640, 96), (640, 178))
    d.text(632, 150, "somebody was first", anchor="end", kind="soft")
    d.arrow((740, 210), (800, 210), (800, 130), (715, 130), (715, 98))
    d.arrow((580, 210), (502, 210))
    d.text(10, 122, "A crash in steps 1 to 3 leaves objects that nothing refers to:", kind="soft")
    d.text(10, 139, "readers never see them, and garbage collection deletes them.", kind="soft")
    return d


def ingest() -> Drawing:
    """Draw the six stages of an ingest."""
    d = Drawing(860, 220, "Stages of an ingest: discover, inspect, combine, plan, write, publish")
    stages = [
        ("discover", "~find sources,", "~skip known ones", "amber"),
        ("inspect", "~read schemas,", "~not the data", "amber"),
        ("combine", "~one dataset;", "~check units, times", "blue"),
        ("plan", "~tasks of whole", "~chunks", "blue"),
        ("write", "~chunks or", "~references", "green"),
        ("publish", "~audit, then", "~move the branch", "green"),
    ]
    for number, (name, first, second, tone) in enumerate(stages):
        x = 10 + 142 * number
        d.box(x, 50, 122, 68, name, first, second, tone=tone)
        if number:
            d.arrow((x - 20, 84), (x - 2, 84))
    d.frame(142, 14, 142, 114, "workers")
    d.frame(568, 14, 142, 114, "workers")
    d.box(10, 160, 264, 40, "ledger: files already ingested", tone="plain")
    d.arrow((71, 160), (71, 120))
    d.arrow((639, 128), (639, 180), (276, 180))
    d.text(457, 173, "recorded in the same commit as the data", anchor="middle", kind="soft")
    return d


def write_audit_publish() -> Drawing:
    """Draw a staging branch, its audit, and the two outcomes."""
    d = Drawing(
        860,
        250,
        "Write-audit-publish: new data is committed to a staging branch, audited, and then published to main",
    )
    d.text(10, 62, "main", kind="bold")
    for x in (90, 160):
        d.circle(x, 58, 11, "green")
    d.line((101, 58), (149, 58))
    d.text(10, 152, "main.ingest…", kind="bold")
    d.circle(260, 148, 11, "amber")
    d.circle(330, 148, 11, "amber")
    d.line((168, 66), (200, 148), (249, 148))
    d.line((271, 148), (319, 148))
    d.text(295, 182, "1  write", anchor="middle", kind="soft")
    d.box(400, 124, 130, 48, "2  audit", "~checks run as tasks", tone="blue")
    d.arrow((341, 148), (398, 148))
    d.circle(700, 58, 11, "green")
    d.line((171, 58), (689, 58))
    d.arrow((530, 140), (610, 140), (692, 68), label="")
    d.text(544, 128, "passed", kind="soft")
    d.text(676, 118, "3  publish", kind="soft")
    d.text(700, 34, "readers see all of it at once", anchor="middle", kind="soft")
    d.arrow((530, 160), (600, 210), (640, 210))
    d.box(642, 188, 200, 44, "main.ingest-failed", "~kept for you to look at", tone="red")
    d.text(560, 226, "failed", kind="soft")
    return d


def merge() -> Drawing:
    """Draw a three-way merge."""
    d = Drawing(
        860,
        250,
        "A three-way merge compares both tips with their common base, node by node and chunk by chunk",
    )
    d.text(10, 72, "main", kind="bold")
    d.text(10, 182, "dev", kind="bold")
    for x, y, tone in (
        (100, 68, "plain"),
        (200, 68, "green"),
        (300, 68, "green"),
        (220, 178, "amber"),
        (320, 178, "amber"),
    ):
        d.circle(x, y, 11, tone)
    d.line((111, 68), (189, 68))
    d.line((211, 68), (289, 68))
    d.line((107, 77), (150, 178), (209, 178))
    d.line((231, 178), (309, 178))
    d.text(100, 44, "base", anchor="middle", kind="soft")
    d.text(300, 44, "ours", anchor="middle", kind="soft")
    d.text(320, 212, "theirs", anchor="middle", kind="soft")
    d.circle(440, 68, 13, "blue")
    d.line((311, 68), (427, 68))
    d.arrow((331, 176), (380, 170), (432, 80))
    d.text(440, 44, "merge", anchor="middle", kind="soft")
    d.frame(500, 14, 350, 222, "for each array, group and chunk")
    rows = [
        ("only one side changed it", "take that side", "green"),
        ("both made the same change", "take it", "green"),
        ("both changed it differently", "conflict", "red"),
        ("strategy ours or theirs", "that side wins", "amber"),
    ]
    for number, (case, result, tone) in enumerate(rows):
        y = 44 + 47 * number
        d.text(515, y + 22, case)
        d.box(718, y, 120, 36, result, tone=tone)
    return d


DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    "overview": overview,
    "layers": layers,
    "on-disk": on_disk,
    "commit": commit,
    "ingest": ingest,
    "write-audit-publish": write_audit_publish,
    "merge": merge,
}


def main() -> None:
    """Write all diagrams."""
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
