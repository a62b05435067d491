"""The report of the last verification, which is stored next to the checksums.

The file is `icefloe/verified/report.json`. Official readers and garbage collection ignore it, and clones do
not copy it. Its size is limited, and it contains no secrets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from icefloe._internal.redaction import redact
from icefloe._internal.report import Report
from icefloe.errors import ErrorKind, FormatError
from icefloe.maintenance.integrity.findings import Finding, Level, VerifyReport
from icefloe.storage.base import ObjectNotFoundError, Storage

PATH: Final = "icefloe/verified/report.json"
_FORMAT: Final = 1
_MAX_FINDINGS: Final = 1000
_LONGEST_TEXT: Final = 500
_LARGEST_FILE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class VerificationRecord(Report):
    """The stored record of the last verification: its report and when it ended."""

    report: VerifyReport
    """The report, with at most the first 1000 findings and shortened messages."""
    verified_at: datetime
    """When the verification ended."""
    findings_total: int
    """Number of findings, including those that were not recorded."""
    snapshot_id: str | None = None
    """The tip that was verified; None for all branches and tags."""
    with_checksums: bool = False
    """True if objects were compared with recorded checksums."""

    @property
    def ok(self) -> bool:
        """True if the last recorded verification found no problems."""
        return not self.findings_total


def record_report(
    storage: Storage, report: VerifyReport, *, snapshot_id: str | None = None, with_checksums: bool = False
) -> VerificationRecord:
    """Record a report as that of the last verification, with at most 1000 findings and without secrets."""
    storage.check_writable()
    kept = tuple(_shorten(each) for each in report.findings[:_MAX_FINDINGS])
    counts = {name: getattr(report, name) for name in _COUNTS}
    record = VerificationRecord(
        VerifyReport(report.level, kept, **counts),
        datetime.now(UTC),
        len(report.findings),
        snapshot_id,
        with_checksums,
    )
    document = record.to_dict() | {"format": _FORMAT, "verified_at": record.verified_at.isoformat()}
    storage.put(PATH, json.dumps(document).encode())
    storage.sync()
    return record


def last_verification(storage: Storage) -> VerificationRecord | None:
    """Read the report of the last verification, as recorded by `icefloe verify`.

    Parameters
    ----------
    storage
        The storage of the repository, `repo.storage`.

    Returns
    -------
    VerificationRecord or None
        The record, or None if there is none.

    Raises
    ------
    FormatError
        The file is damaged.
    """
    try:
        data, _ = storage.get(PATH)
    except ObjectNotFoundError:
        return None
    if len(data) > _LARGEST_FILE:
        raise _make_damaged_error(f"{len(data)} bytes")
    try:
        return _parse(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _make_damaged_error(f"{type(error).__name__}: {error}") from None


_COUNTS: Final = tuple(each.name for each in fields(VerifyReport) if each.name not in ("level", "findings"))


def _shorten(found: Finding) -> Finding:
    return Finding(*(redact(getattr(found, each.name))[:_LONGEST_TEXT] for each in fields(Finding)))


def _parse(document: dict[str, Any]) -> VerificationRecord:
    if document["format"] != _FORMAT:
        raise ValueError(f"its format {document['format']!r} is that of another release")
    report = document["report"]
    findings = tuple(
        Finding(*(str(found[each.name]) for each in fields(Finding)))
        for found in report["findings"][:_MAX_FINDINGS]
    )
    snapshot_id = document["snapshot_id"]
    return VerificationRecord(
        VerifyReport(Level(report["level"]), findings, **{name: int(report[name]) for name in _COUNTS}),
        datetime.fromisoformat(document["verified_at"]),
        max(int(document["findings_total"]), len(findings)),
        None if snapshot_id is None else str(snapshot_id),
        bool(document["with_checksums"]),
    )


def _make_damaged_error(problem: str) -> FormatError:
    return FormatError(
        f"{PATH} is not a report of a verification ({problem[:_LONGEST_TEXT]}); verify again to replace it",
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )
