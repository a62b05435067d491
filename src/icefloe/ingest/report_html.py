"""Render the report of an ingest as HTML, for notebooks and files."""

from __future__ import annotations

from typing import Any

from icefloe._internal import html
from icefloe._internal.amounts import counted, format_bytes


def render_report(found: dict[str, Any], *, ok: bool) -> str:
    """Render the result of `IngestReport.to_dict` as an HTML document."""
    parts = [
        html.mark(*_summarize(found, ok=ok)),
        html.render_facts(_list_facts(found)),
        _render_arrays(found),
        _render_checks(found),
    ]
    bad = [(each["source"], each["reason"]) for each in found["bad"]]
    findings = [
        (each["severity"], each["source"], each["variable"], each["text"]) for each in found["findings"]
    ]
    moved = [(each["source"], each["was"]) for each in found["moved"]]
    parts += [
        html.render_section("Skipped files", len(bad), html.render_table(("file", "reason"), bad, len(bad))),
        _render_files("Changed or missing files that virtual references point to", found["broken"]),
        html.render_section(
            "Differences between files",
            len(findings),
            html.render_table(("severity", "file", "variable", "finding"), findings, len(findings)),
        ),
        html.render_section(
            "Renamed files", len(moved), html.render_table(("file", "before"), moved, len(moved))
        ),
        _render_files("Changed files", found["changed"]),
        _render_files("Ingested files", found["ingested"], is_open=False),
        _render_files("Files that were ingested before", found["known"], is_open=False),
    ]
    return html.render_card("icefloe", "Ingest report", "", *parts)


def _summarize(found: dict[str, Any], *, ok: bool) -> tuple[bool, str]:
    if found["failed_branch"]:
        return False, f"a check failed, so nothing was published; see branch {found['failed_branch']}"
    if not ok:
        return False, "virtual references point to files that have changed or are missing"
    if found["published"]:
        return True, f"{counted(len(found['ingested']), 'file')} ingested"
    if found["plan"]:
        return True, "dry run: nothing was written"
    return not found["bad"], "nothing was ingested" if found["bad"] else "nothing new"


def _list_facts(found: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"snapshot": found["published"], "commits": found["commits"]}
    facts |= {
        "files ingested": len(found["ingested"]),
        "files ingested before": len(found["known"]),
        "files skipped": len(found["bad"]),
    }
    if plan := found["plan"]:
        facts |= {
            "data": f"{format_bytes(plan['nbytes'])} in {counted(plan['blocks'], 'block')}",
            "work": f"{counted(plan['tasks'], 'task')} of at most {format_bytes(plan['memory_bytes'])}",
            "files read": f"{plan['read_factor']:.1f} times",
            "spilled": format_bytes(plan["spilled_bytes"]) if plan["spilled_bytes"] else None,
        }
    return {name: value for name, value in facts.items() if value not in (None, [])}


def _render_arrays(found: dict[str, Any]) -> str:
    arrays = found["plan"]["arrays"] if found["plan"] else ()
    rows = [
        (
            each["name"],
            ", ".join(f"{dim}: {size}" for dim, size in zip(each["dims"], each["shape"], strict=True)),
            each["dtype"],
            " x ".join(map(str, each["chunks"])),
            " x ".join(map(str, each["shards"] or ())),
            format_bytes(each["nbytes"]),
        )
        for each in arrays
    ]
    names = ("array", "shape", "dtype", "chunks", "shards", "new data")
    return html.render_section("Arrays", len(rows), html.render_table(names, rows, len(rows)))


def _render_checks(found: dict[str, Any]) -> str:
    checks = "".join(
        f"<div>{html.mark(each['passed'], each['name'])}: {html.escape(each['text'])}</div>"
        for each in found["checks"]
    )
    return html.render_section("Checks", len(found["checks"]), checks)


def _render_files(title: str, files: list[str], *, is_open: bool = True) -> str:
    return html.render_section(
        title, len(files), html.render_table(("file",), zip(files, strict=True), len(files)), is_open=is_open
    )
