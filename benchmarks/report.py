"""Format outcomes as a table, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Figures, Outcome

BEGIN: Final = "<!-- figures of {}: written by benchmarks/run.py --markdown -->"
END: Final = "<!-- end of figures -->"
HEAD: Final = ("row", "CPU s", "wall s", "peak MB", "less CPU", "limit", "memory", "target", "")
_MARKS: Final = {True: "pass", False: "MISS", None: "-"}


def table(outcomes: Sequence[Outcome]) -> str:
    """Format outcomes for the terminal: a line per row, and then the compared jobs."""
    lines = [HEAD, *map(_cells, outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    text += ["", "Pairs are icefloe / icechunk. What each side did:"]
    for outcome in outcomes:
        text += [f"  {outcome.row.name}: {outcome.row.title}", f"    icefloe:  {outcome.row.ours.does}"]
        if outcome.row.theirs is not None:
            text.append(f"    icechunk: {outcome.row.theirs.does}")
        if outcome.row.limit is not None:
            text.append(f"    limit:    {outcome.row.limit.does}")
        if outcome.note:
            text.append(f"    note: {outcome.note}")
    return "\n".join(line.rstrip() for line in text)


def markdown(outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> str:
    """Format outcomes as Markdown."""
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"Measured on {datetime.now(UTC):%d %B %Y}: {made}. Pairs are icefloe / icechunk.", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    lines += ["| " + " | ".join(_cells(outcome)) + " |" for outcome in outcomes]
    lines += ["", "| row | job | icefloe | icechunk |", "| --- | --- | --- | --- |"]
    for outcome in outcomes:
        theirs = outcome.row.theirs.does if outcome.row.theirs else "-"
        lines.append(f"| {outcome.row.name} | {outcome.row.title} | {outcome.row.ours.does} | {theirs} |")
    notes = [f"- {outcome.row.name}: {outcome.note}" for outcome in outcomes if outcome.note]
    return "\n".join(lines + (["", *notes] if notes else []))


def replace_figures(page: Path, section: str, text: str) -> None:
    """Replace the figures between the two markers of a section of a page."""
    begin = BEGIN.format(section)
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"{page} lacks the lines {begin} and {END}")
    page.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


def as_json(outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> dict[str, Any]:
    """Return all measurements as JSON."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": dict(versions),
        "rows": {
            outcome.row.name: {
                "title": outcome.row.title,
                "cpu_ratio": outcome.cpu_ratio,
                "limit_ratio": outcome.limit_ratio,
                "memory_ratio": outcome.memory_ratio,
                "target": target(outcome),
                "passed": outcome.passed,
                "icefloe": _figures(outcome.ours),
                "icechunk": _figures(outcome.theirs),
                "limit": _figures(outcome.limit),
                "note": outcome.note,
            }
            for outcome in outcomes
        },
    }


def target(outcome: Outcome) -> str:
    """Describe the targets of a row."""
    row, demands = outcome.row, []
    if row.cpu_ratio is not None:
        demands.append(f"CPU >= {row.cpu_ratio:g}x")
    if row.wall_ratio is not None:
        demands.append(f"wall >= {row.wall_ratio:g}x")
    if row.limit_ratio is not None:
        demands.append(f"CPU <= {row.limit_ratio:g}x limit")
    if row.memory_ratio is not None:
        demands.append(f"memory <= 1/{1 / row.memory_ratio:g}")
    if row.memory_bytes is not None:
        demands.append(f"process <= {row.memory_bytes / 1e9:g} GB")
    return ", ".join(demands)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    ours, theirs = outcome.ours, outcome.theirs
    return (
        outcome.row.name,
        _pair(*(None if side is None else f"{side.cpu:.3f}" for side in (ours, theirs))),
        _pair(*(None if side is None else f"{side.wall:.3f}" for side in (ours, theirs))),
        _pair(_megabytes(outcome, ours), _megabytes(outcome, theirs)),
        "-" if outcome.cpu_ratio is None else f"{outcome.cpu_ratio:.1f}x",
        _format_limit(outcome),
        "-" if outcome.memory_ratio is None else f"{outcome.memory_ratio:.2f}",
        target(outcome),
        _MARKS[outcome.passed],
    )


def _format_limit(outcome: Outcome) -> str:
    """Format the CPU time of the unavoidable work, and our multiple of it."""
    if outcome.limit is None or outcome.limit_ratio is None:
        return "-"
    return f"{outcome.limit.cpu:.3f} ({outcome.limit_ratio:.2f}x)"


def _megabytes(outcome: Outcome, figures: Figures | None) -> str | None:
    if figures is None or figures.peak is None:
        return None
    whole = outcome.row.memory_bytes is not None
    return f"{(figures.peak.process_bytes if whole else figures.peak.job_bytes) / 1e6:.0f}"


def _pair(ours: str | None, theirs: str | None) -> str:
    return f"{ours or '-'} / {theirs}" if theirs else ours or "-"


def _figures(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    medians = {"cpu_s": figures.cpu, "wall_s": figures.wall}
    return medians | {"all_cpu_s": figures.cpu_s, "peak": figures.peak and asdict(figures.peak)}
