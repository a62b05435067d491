"""Compare icefloe with the official package (`make bench`, or this file with options)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    conflicts,
    deriving,
    describing,
    extracting,
    forks,
    growth,
    ingesting,
    latency,
    maintenance,
    manifests,
    official,
    parsing,
    rechunking,
    report,
    small,
    snapshots,
    starting,
    store,
    virtual,
)
from benchmarks.harness import OURS, THEIRS, Row, adopt_orphans, measure, run_for_peak, versions

MODULES = (
    manifests,
    snapshots,
    store,
    starting,
    small,
    latency,
    conflicts,
    forks,
    growth,
    virtual,
    maintenance,
    parsing,
    rechunking,
    deriving,
    describing,
    extracting,
    ingesting,
)
ROWS: dict[str, Row] = {row.name: row for module in MODULES for row in module.ROWS}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.list:
        for row in ROWS.values():
            print(f"{row.name:22}{row.title}")
        return
    adopt_orphans()
    if options.peak_of:
        (row,) = _chosen(options.row)
        side = row.ours if options.peak_of == OURS else row.theirs
        assert side is not None
        print(json.dumps(asdict(run_for_peak(side, options.folder))))
        return
    outcomes = []
    unavailable = official.why_unavailable()
    for row in _chosen(options.row):
        print(f"{row.name}: {row.title} ...", file=sys.stderr, flush=True)
        outcomes.append(measure(row, options.repeat, unavailable))
    print(report.table(outcomes))
    made = versions()
    print("\n" + ", ".join(f"{name} {version}" for name, version in made.items()))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(outcomes, made), indent=2) + "\n")
    if options.markdown:
        report.replace_figures(options.markdown, options.section, report.markdown(outcomes, made))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--row", metavar="NAME", action="append", help="only this row, or those whose names begin so"
    )
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="turns per row, instead of each row's own number"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument(
        "--section", default="manifests", help="which section of the page (default: manifests)"
    )
    parser.add_argument("--peak-of", choices=[OURS, THEIRS], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def _chosen(names: Sequence[str] | None) -> list[Row]:
    if names is None:
        return list(ROWS.values())
    chosen: dict[str, Row] = {}
    for name in names:
        exact = [ROWS[name]] if name in ROWS else []
        rows = exact or [row for row in ROWS.values() if row.name.startswith(name)]
        if not rows:
            raise SystemExit(f"no row {name!r}; there are: {', '.join(ROWS)}")
        chosen |= {row.name: row for row in rows}
    return list(chosen.values())


if __name__ == "__main__":
    main()
