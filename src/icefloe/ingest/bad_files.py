"""Files that cannot be ingested, and the error that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icefloe._internal.amounts import counted
from icefloe._internal.table import Table
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.discover.sources import IngestSource
from icefloe.virtual.errors import CannotVirtualizeError

_REPAIR_FILE = Hint("repair or remove the file")
_REPAIR = Hint("repair or remove them")
_SKIP = Hint("skip bad files with {on_bad_file}", on_bad_file="skip")
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that cannot be ingested, with the reason and the remedy."""

    source: IngestSource
    reason: str
    remedy: str | Hint = ""
    """The remedy; empty if the file must be repaired or removed."""
    is_sound: bool = False
    """True if the file itself is readable, but a package is missing or an option is wrong."""
    offered: tuple[str, ...] = ()
    """All data variables in the file, if some of the selected variables do not exist."""
    variable: str = ""
    """The variable with the problem; empty if it concerns the whole file."""

    @property
    def advice(self) -> str | Hint:
        """How to fix a bad file. By default, repair or remove it."""
        return self.remedy or _REPAIR_FILE

    @property
    def problem(self) -> str:
        """The reason why a file is bad, preceded by the variable name if only one variable is affected."""
        return ": ".join(filter(None, (self.variable, self.reason)))

    @property
    def sentence(self) -> str:
        """A sentence about a bad file with the variable, the reason and the remedy."""
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem


def explain(error: BaseException) -> str:
    """Summarize an exception in one line, as the reason why a file is bad."""
    message = error.message if isinstance(error, CannotVirtualizeError) else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ProblemsError(InvalidInputError):
    """Error raised if some files cannot be ingested or combined. It lists all of them, and nothing was
    written.

    `bad` contains the problems of all files; `problems` returns them as a table.
    """

    bad: tuple[BadFile, ...]

    def __init__(self, bad: Sequence[BadFile]) -> None:
        self.bad = tuple(bad)
        super().__init__(f"{self.headline}: {self._details()}", ErrorKind.INVALID_FILE_FORMAT)
        self.args = (self.bad,)
        if not all(each.is_sound for each in bad):
            hints = [each.remedy for each in bad if isinstance(each.remedy, Hint)][:_MAX_SHOWN]
            hints += [] if all(each.remedy for each in bad) else [_REPAIR]
            self.hint = Hint.any_of(*hints, *([_SKIP] if self._files else []))

    @property
    def _files(self) -> set[str]:
        return {each.source.url for each in self.bad} - {""}

    @property
    def headline(self) -> str:
        """The first line of the error message, which summarizes the bad files."""
        if not self._files:
            return "the files cannot be combined"
        return f"{counted(len(self._files), 'file')} cannot be ingested"

    @property
    def problems(self) -> Table:
        """All bad files as a table: file, variable, problem and remedy."""
        return make_problem_table(self.bad)

    def _details(self) -> str:
        urls: dict[str, list[str]] = {}
        for each in self.bad:
            text = each.problem if isinstance(each.remedy, Hint) else each.sentence
            urls.setdefault(text, []).append(each.source.url)
        texts = [
            ": ".join(filter(None, (f"{names[0]}{_format_more(len(names) - 1)}", text)))
            for text, names in urls.items()
        ]
        more = f"; and {counted(len(texts) - _MAX_SHOWN, 'other problem')}" if len(texts) > _MAX_SHOWN else ""
        return f"{'; '.join(texts[:_MAX_SHOWN])}{more}"


def _format_more(count: int) -> str:
    return f" and {count} more" if count else ""


def make_problem_table(bad: Sequence[BadFile]) -> Table:
    """Create a table of bad files: file, variable, problem and remedy."""
    return Table(
        {
            "file": [each.source.url for each in bad],
            "variable": [each.variable for each in bad],
            "problem": [each.reason for each in bad],
            "remedy": [str(each.advice) for each in bad],
        }
    )
