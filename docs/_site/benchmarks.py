"""The table and the chart of the benchmarks, from `benchmarks/history.json`.

    python -m docs._site.benchmarks [FIGURES.json]

writes them into the page, the README and docs/images; a test compares. With a file of `make bench JSON=FIGURES.json`, its
figures are added to the history first.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs._site.drawing import TONES, Drawing

ROOT = Path(__file__).resolve().parents[2]
HISTORY = ROOT / "benchmarks" / "history.json"
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
README = ROOT / "README.md"
CHART = ROOT / "docs" / "images" / "benchmarks.svg"

TITLES = {
    "list-nodes": "list 50,000 nodes",
    "fork-merge": "merge 8 forks of 125,000 references",
    "import": "import the package",
    "rebase-detect": "find 100,000 conflicts",
    "read-1m": "read 128 chunks of 1 MiB",
    "write-100-per-file": "commit a million virtual references",
    "read-64k": "read 512 chunks of 64 KiB",
    "lookup-100-per-file": "find one of a million references",
    "small-open-folder": "open a repository in a folder",
    "gc": "collect 150,000 objects",
    "ingest-virtual": "virtual ingest of 2,000 files",
    "write-64k": "write 512 chunks of 64 KiB",
    "small-commits-folder": "1,000 small commits",
    "ingest-native": "ingest 2 GB of NetCDF",
    "latency-s3": "read from slow S3",
    "small-ancestry": "list 5,000 commits",
    "small-ops-log": "list the operations log",
    "small-create-folder": "create a repository in a folder",
    "small-create-unsynced": "create a repository in a folder, without waiting for the disk",
    "write-1m": "write 128 chunks of 1 MiB",
}
"""The rows of the table, in words."""
README_ROWS = (
    "list-nodes", "read-1m", "write-100-per-file", "gc", "ingest-virtual", "ingest-native", "small-commits-folder",
    "latency-s3", "small-ops-log", "small-create-folder",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU seconds of one row, of icefloe and of the other side."""

    name: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times less CPU icefloe uses; below 1 it uses more."""
        return self.theirs / self.ours

    @property
    def verdict(self) -> str:
        """The ratio in words."""
        if 0.95 < self.ratio < 1.05:
            return "equal"
        return f"{self.ratio:.1f}× less" if self.ratio > 1 else f"{1 / self.ratio:.1f}× **more**"


def figures() -> list[Figure]:
    """Return the newest figure of each row, best ratio first; runs on a busy machine do not count."""
    newest: dict[str, list[float]] = {}
    for run in (run for run in history() if not run.get("busy")):
        newest |= run["cpu_s"]
    found = [Figure(name, *newest[name]) for name in TITLES]
    return sorted(found, key=lambda figure: -figure.ratio)


def history() -> list[dict[str, Any]]:
    """Return all runs, oldest first."""
    runs: list[dict[str, Any]] = json.loads(HISTORY.read_text(encoding="utf-8"))
    return runs


def table(names: tuple[str, ...] = tuple(TITLES)) -> str:
    """Return the Markdown table of some rows."""
    rows = [
        f"| {TITLES[each.name]} | {each.ours:g} | {each.theirs:g} | {each.verdict} |"
        for each in figures()
        if each.name in names
    ]
    return "\n".join(
        ["| job | icefloe, CPU s | icechunk, CPU s | icefloe uses |", "| --- | --- | --- | --- |", *rows]
    )


def chart() -> Drawing:
    """Draw the ratios on a logarithmic scale."""
    rows = figures()
    d = Drawing(
        860,
        60 + 26 * len(rows),
        "CPU time of icechunk divided by that of icefloe, per job, on a logarithmic scale",
    )
    left, unit = 330, 150  # pixels of a ratio of 1, and of a factor of 10
    bottom = 34 + 26 * len(rows)
    for factor in (0.5, 1, 2, 5, 10, 20, 50, 100):
        x = left + unit * math.log10(factor)
        faint = 0.9 if factor == 1 else 0.25
        d.shapes.append(
            f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{bottom}" class="line" stroke-opacity="{faint}"/>'
        )
        d.text(x, 18, f"{factor:g}×", anchor="middle", kind="soft")
    for number, figure in enumerate(rows):
        y = 34 + 26 * number
        end = left + unit * math.log10(figure.ratio)
        tone = "green" if figure.ratio >= 1.05 else "amber" if figure.ratio > 0.95 else "red"
        x, width = min(left, end), max(abs(end - left), 2)
        d.shapes.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" rx="3" fill="{TONES[tone]}" fill-opacity="0.75"/>'
        )
        d.text(left - 60, y + 13, TITLES[figure.name], anchor="end")
        d.text(max(end, left) + 8, y + 13, f"{figure.ratio:.1f}×", kind="soft")
    d.text(left, bottom + 20, "less CPU than icechunk →", kind="soft")
    d.text(left - 8, bottom + 20, "← more", anchor="end", kind="soft")
    return d


def trends() -> str:
    """Return the table of ratios of rows that were measured more than once, with a column per run."""
    runs = history()
    names = [name for name in TITLES if sum(name in run["cpu_s"] for run in runs) > 1]
    runs = [run for run in runs if any(name in run["cpu_s"] for name in names)]
    heads = [run["measured_at"][:10] + (", busy machine" if run.get("busy") else "") for run in runs]
    rows = [[TITLES[name], *(_ratio(run["cpu_s"].get(name)) for run in runs)] for name in names]
    table = [["job", *heads], ["---"] * (1 + len(runs)), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def limits() -> str:
    """Return the table of all measurements of rows whose unavoidable work was measured in the same turns."""
    lines = [
        "| job | measured | icefloe, CPU s | icechunk, CPU s | limit, CPU s | icefloe / limit |",
        "|" + " --- |" * 6,
    ]
    for run in history():
        when = run["measured_at"][:10] + (", busy machine" if run.get("busy") else "")
        for name, limit in run.get("limit_cpu_s", {}).items():
            ours, theirs = run["cpu_s"][name]
            lines.append(
                f"| {TITLES[name]} | {when} | {ours:g} | {theirs:g} | {limit:g} | {ours / limit:.2f}× |"
            )
    return "\n".join(lines)


def with_figures(text: str, **tables: str) -> str:
    """Replace what is between the markers `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, content in tables.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}\n{content}\n\n{end}{after}"
    return text


def expected() -> dict[Path, str]:
    """Return path -> text of everything that contains figures."""
    page, readme = PAGE.read_text(encoding="utf-8"), README.read_text(encoding="utf-8")
    return {
        PAGE: with_figures(page, figures=table(), limits=limits(), history=trends()),
        README: with_figures(readme, figures=table(README_ROWS)),
        CHART: chart().svg(),
    }


def add(path: Path) -> None:
    """Add a file of `make bench JSON=...` to the history."""
    measured = json.loads(path.read_text(encoding="utf-8"))
    rows = {
        name: [row["icefloe"]["cpu_s"], row["icechunk"]["cpu_s"]]
        for name, row in measured["rows"].items()
        if row["icefloe"] and row["icechunk"]
    }
    limit_s = {
        name: row["limit"]["cpu_s"] for name, row in measured["rows"].items() if name in rows and row["limit"]
    }
    versions = measured["versions"]
    note = f"(icechunk {versions.get('icechunk', '-')}, Python {versions.get('python', '-')})"
    runs = [
        *history(),
        {"measured_at": measured["measured_at"], "note": note, "cpu_s": rows, "limit_cpu_s": limit_s},
    ]
    HISTORY.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def _ratio(pair: list[float] | None) -> str:
    return f"{pair[1] / pair[0]:.1f}×" if pair else "-"


def main(arguments: list[str]) -> None:
    """Add the given files, then write all figures."""
    for name in arguments:
        add(Path(name))
    for path, text in expected().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
