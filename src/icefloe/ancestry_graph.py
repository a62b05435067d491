"""The history of a repository as a drawing: one lane per branch, newest snapshot on top."""

from __future__ import annotations

import heapq
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icefloe.printable import printable

_ID_LENGTH = 8
_MESSAGE_LENGTH = 60
_COLOURS = ("#2E86C1", "#D35400", "#27AE60", "#8E44AD", "#C0392B", "#16A085", "#B7950B", "#7F8C8D")
_TAG_COLOUR = "#5D6D7E"
_ROW_PX, _LANE_PX, _MARGIN_PX, _LETTER_PX = 28, 20, 16, 8


@dataclass(frozen=True, slots=True)
class GraphCommit:
    """A snapshot as the drawing shows it."""

    id: str
    parent_id: str | None
    written_at_us: int
    message: str
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The first line of the message, cut where it is long; terminals obey nothing in it."""
        line = printable(self.message.partition("\n")[0].rstrip())
        return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 3] + "..."


@dataclass(frozen=True, slots=True, repr=False)
class AncestryGraph:
    """Snapshots and how they descend from each other: `print` draws it as text, notebooks as a picture."""

    commits: tuple[GraphCommit, ...]
    """Newest first, every snapshot before its parent."""
    plain: bool = False
    """Without colours in the text."""
    _lanes: tuple[_Lane, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lanes", tuple(_lanes(self.commits)))

    @staticmethod
    def of(commits: Iterable[GraphCommit], *, plain: bool = False) -> AncestryGraph:
        """From snapshots in any order."""
        return AncestryGraph(tuple(_newest_first({commit.id: commit for commit in commits})), plain)

    def __repr__(self) -> str:
        return "\n".join(self._text_lines())

    def _text_lines(self) -> Iterator[str]:
        lane_of = {row: lane for lane in self._lanes for row in lane.rows}
        for row, commit in enumerate(self.commits):
            cells = self._cells(row, lane_of[row])
            labels = [self._painted(printable(name), lane_of[row].colour) for name in commit.branches]
            labels += [self._painted(printable(name), _TAG_COLOUR) for name in commit.tags]
            names = f" ({', '.join(labels)})" if labels else ""
            yield f"{cells}{commit.id[:_ID_LENGTH]}{names} {commit.title}".rstrip()
            if row + 1 < len(self.commits):
                yield self._between(row)

    def _cells(self, row: int, own: _Lane) -> str:
        """The lanes beside a snapshot: its own, those that pass by, and those that end in it."""
        ending = [lane for lane in self._lanes if lane.joins == row]
        last = max((lane.index for lane in ending), default=-1)
        cells = []
        for lane in self._lanes:
            crossed = own.index < lane.index < last
            if lane is own:
                text, colour = "●", own.colour
            elif lane.joins == row:
                text, colour = ("┴" if crossed else "╯"), lane.colour
            elif lane.passes(row):
                text, colour = ("┼" if crossed else "│"), lane.colour
            else:
                text, colour = ("─" if crossed else " "), self._lanes[last].colour
            line = "─" if own.index <= lane.index < last else " "
            cells.append(self._painted(text, colour) + self._painted(line, self._lanes[last].colour))
        return "".join(cells)

    def _between(self, row: int) -> str:
        cells = [
            self._painted("│", lane.colour) if lane.first <= row < lane.end else " " for lane in self._lanes
        ]
        return " ".join(cells).rstrip()

    def _painted(self, text: str, colour: str) -> str:
        if self.plain or text == " ":
            return text
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"\x1b[38;2;{red};{green};{blue}m{text}\x1b[0m"

    def _repr_svg_(self) -> str:
        """The drawing as a picture."""
        lane_of = {row: lane for lane in self._lanes for row in lane.rows}
        text_x = _MARGIN_PX + _LANE_PX * len(self._lanes)
        shapes = [shape for lane in self._lanes for shape in _svg_lane(lane, lane_of)]
        widest = 0
        for row, commit in enumerate(self.commits):
            lane = lane_of[row]
            labels = [_svg_label(name, lane.colour, "bold") for name in commit.branches]
            labels += [_svg_label(name, _TAG_COLOUR, "normal") for name in commit.tags]
            names = f" ({', '.join(labels)})" if labels else ""
            shapes.append(f'<circle cx="{_x(lane.index)}" cy="{_y(row)}" r="5" fill="{lane.colour}"/>')
            shapes.append(
                f'<text x="{text_x}" y="{_y(row) + 4}" fill="#888">{commit.id[:_ID_LENGTH]}{names} '
                f"{html.escape(commit.title)}</text>"
            )
            letters = _ID_LENGTH + 4 + sum(len(n) + 2 for n in (*commit.branches, *commit.tags))
            widest = max(widest, letters + len(commit.title))
        width, height = text_x + _LETTER_PX * widest + _MARGIN_PX, _y(len(self.commits))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        return "\n".join([f'{head} font-family="monospace" font-size="13">', *shapes, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Lane:
    """A line of snapshots, each the parent of the one above, down to the lane it comes from."""

    index: int
    rows: tuple[int, ...]
    joins: int | None
    """The row, in another lane, of the parent of the lowest."""

    @property
    def first(self) -> int:
        return self.rows[0]

    @property
    def end(self) -> int:
        return self.rows[-1] if self.joins is None else self.joins

    @property
    def colour(self) -> str:
        return _COLOURS[self.index % len(_COLOURS)]

    def passes(self, row: int) -> bool:
        return self.first < row < self.end


def _lanes(commits: Sequence[GraphCommit]) -> Iterator[_Lane]:
    """Main has the first lane, other tips follow by name, and unnamed ones from the top."""
    row_of = {commit.id: row for row, commit in enumerate(commits)}
    parents = {commit.parent_id for commit in commits}
    tips = [row for row, commit in enumerate(commits) if commit.branches or commit.id not in parents]
    taken: set[int] = set()
    index = 0
    for tip in sorted(tips, key=lambda row: _lane_order(commits[row])):
        rows = []
        at: int | None = tip
        while at is not None and at not in taken:
            rows.append(at)
            taken.add(at)
            at = row_of.get(commits[at].parent_id or "")
        if rows:
            yield _Lane(index, tuple(rows), at)
            index += 1


def _lane_order(commit: GraphCommit) -> tuple[bool, bool, tuple[str, ...], int]:
    return ("main" not in commit.branches, not commit.branches, commit.branches, -commit.written_at_us)


def _newest_first(commits: Mapping[str, GraphCommit]) -> Iterator[GraphCommit]:
    """By time, but none before all its children: clocks may differ."""
    children = dict.fromkeys(commits, 0)
    for commit in commits.values():
        if commit.parent_id in children:
            children[commit.parent_id] += 1
    ready = [(-commits[id].written_at_us, id) for id, count in children.items() if not count]
    heapq.heapify(ready)
    while ready:
        commit = commits[heapq.heappop(ready)[1]]
        yield commit
        parent = commits.get(commit.parent_id or "")
        if parent is not None:
            children[parent.id] -= 1
            if not children[parent.id]:
                heapq.heappush(ready, (-parent.written_at_us, parent.id))


def _svg_lane(lane: _Lane, lane_of: Mapping[int, _Lane]) -> Iterator[str]:
    x, stroke = _x(lane.index), f'stroke="{lane.colour}" stroke-width="2" fill="none"'
    yield f'<path d="M {x} {_y(lane.first)} V {_y(lane.rows[-1])}" {stroke}/>'
    if lane.joins is not None:
        target, y = _x(lane_of[lane.joins].index), _y(lane.joins)
        bend = y - _ROW_PX // 2
        yield (
            f'<path d="M {x} {_y(lane.rows[-1])} V {bend - _ROW_PX // 2} C {x} {bend}, {target} {bend}, '
            f'{target} {y}" {stroke}/>'
        )


def _svg_label(name: str, colour: str, weight: str) -> str:
    return f'<tspan font-weight="{weight}" fill="{colour}">{html.escape(printable(name))}</tspan>'


def _x(lane: int) -> int:
    return _MARGIN_PX + _LANE_PX * lane


def _y(row: int) -> int:
    return _MARGIN_PX + _ROW_PX * row
