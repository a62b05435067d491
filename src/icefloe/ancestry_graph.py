"""Draw the history of a repository as a graph, with one lane per branch and the newest snapshot on top.

A merge has two parents here: the snapshot it was committed on, and the tip that its metadata names as merged.
"""

from __future__ import annotations

import heapq
import html
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icefloe._internal.printable import escape_control

_ID_LENGTH = 8
_MESSAGE_LENGTH = 60
_COLOURS = ("#2E86C1", "#D35400", "#27AE60", "#8E44AD", "#C0392B", "#16A085", "#B7950B", "#7F8C8D")
_TAG_COLOUR = "#5D6D7E"
_MAX_COLUMNS = 100
"""The maximum number of lanes side by side. More lanes are hard to follow by eye and take quadratic time to
draw.
"""
_ROW_PX, _LANE_PX, _MARGIN_PX, _LETTER_PX = 28, 20, 16, 8


@dataclass(frozen=True, slots=True)
class GraphCommit:
    """A commit in an ancestry graph, with its branches and tags."""

    id: str
    parent_id: str | None
    written_at_us: int
    message: str
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    merged_ids: tuple[str, ...] = ()
    """Branch tips that this commit merged into its parent."""

    @property
    def title(self) -> str:
        """The first line of the commit message, shortened and escaped."""
        line = escape_control(self.message.partition("\n")[0].rstrip())
        return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 3] + "..."


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """The shapes of an ancestry graph: lines and dots in pixels, without text."""

    width: int
    height: int
    lines: tuple[tuple[str, str], ...]
    """SVG path data and the colour of each line."""
    dots: tuple[tuple[int, int, str], ...]
    """The centre and colour of each commit's dot."""
    row_px: int = _ROW_PX


@dataclass(frozen=True, slots=True, repr=False)
class AncestryGraph:
    """The ancestry of a repository as a graph, which `print` draws as text and notebooks show as an image."""

    commits: tuple[GraphCommit, ...]
    """Snapshots, newest first, each before its parent."""
    plain: bool = False
    """True to print without colours."""
    _lanes: tuple[_Lane, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lanes", tuple(_assign_lanes(self.commits)))

    @staticmethod
    def of(commits: Iterable[GraphCommit], *, plain: bool = False) -> AncestryGraph:
        """Create an ancestry graph from snapshots in any order.

        Parameters
        ----------
        commits
            The snapshots.
        plain
            Print without colours.

        Returns
        -------
        AncestryGraph
            The graph.
        """
        return AncestryGraph(tuple(_sort_newest_first({commit.id: commit for commit in commits})), plain)

    def __repr__(self) -> str:
        return "\n".join(self._draw_lines())

    def _draw_lines(self) -> Iterator[str]:
        lane_of = {row: lane for lane in self._lanes for row in lane.rows}
        width = 1 + max((lane.column for lane in self._lanes), default=0)
        for (row, commit), active in zip(enumerate(self.commits), self._find_active_lanes(), strict=True):
            cells = self._draw_cells(row, lane_of[row], active, width)
            labels = [self._paint(escape_control(name), lane_of[row].colour) for name in commit.branches]
            labels += [self._paint(escape_control(name), _TAG_COLOUR) for name in commit.tags]
            names = f" ({', '.join(labels)})" if labels else ""
            yield f"{cells}{commit.id[:_ID_LENGTH]}{names} {commit.title}".rstrip()
            if row + 1 < len(self.commits):
                yield self._draw_between(row, active, width)

    def _find_active_lanes(self) -> Iterator[Mapping[int, _Lane]]:
        """Yield, for each row, the lanes that cross it, by column."""
        starting: defaultdict[int, list[_Lane]] = defaultdict(list)
        for lane in self._lanes:
            starting[lane.start].append(lane)
        active: dict[int, _Lane] = {}
        for row in range(len(self.commits)):
            active = {column: lane for column, lane in active.items() if row <= lane.end}
            active |= {lane.column: lane for lane in starting[row]}
            yield active

    def _draw_cells(self, row: int, own: _Lane, active: Mapping[int, _Lane], width: int) -> str:
        """Draw one row of lanes: the snapshot's own lane, lanes that pass it, and lanes that join it."""
        last = max((each.column for each in active.values() if row in (each.joins, each.merge)), default=-1)
        line_colour = active[last].colour if last >= 0 else ""
        cells = []
        for column in range(width):
            crossed = own.column < column < last
            lane = active.get(column)
            if column == own.column:
                text, colour = "●", own.colour
            elif lane is None:
                text, colour = ("─" if crossed else " "), line_colour
            elif lane.joins == row:
                text, colour = ("┴" if crossed else "╯"), lane.colour
            elif lane.merge == row:
                text, colour = ("┬" if crossed else "╮"), lane.colour
            else:
                text, colour = ("┼" if crossed else "│"), lane.colour
            line = "─" if own.column <= column < last else " "
            cells.append(self._paint(text, colour) + self._paint(line, line_colour))
        return "".join(cells)

    def _draw_between(self, row: int, active: Mapping[int, _Lane], width: int) -> str:
        cells = [
            self._paint("│", active[column].colour) if column in active and row < active[column].end else " "
            for column in range(width)
        ]
        return " ".join(cells).rstrip()

    def _paint(self, text: str, colour: str) -> str:
        if self.plain or text == " ":
            return text
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"\x1b[38;2;{red};{green};{blue}m{text}\x1b[0m"

    def shapes(self) -> GraphShapes:
        """Return the lines and dots of the graph, without text.

        Each commit takes up a row of `row_px` pixels.

        Returns
        -------
        GraphShapes
            The lines and dots.
        """
        lane_of = {row: lane for lane in self._lanes for row in lane.rows}
        width = 2 * _MARGIN_PX + _LANE_PX * max((lane.column for lane in self._lanes), default=0)
        return GraphShapes(
            width,
            _ROW_PX * len(self.commits),
            tuple((_svg_path(lane, lane_of), lane.colour) for lane in self._lanes),
            tuple(
                (_get_x(lane_of[row].column), _get_y(row), lane_of[row].colour)
                for row in range(len(self.commits))
            ),
        )

    def _repr_svg_(self) -> str:
        """Return the graph as SVG, for notebooks."""
        lane_of = {row: lane for lane in self._lanes for row in lane.rows}
        text_x = _MARGIN_PX + _LANE_PX * (1 + max((lane.column for lane in self._lanes), default=0))
        shapes = [_svg_lane(lane, lane_of) for lane in self._lanes]
        widest = 0
        for row, commit in enumerate(self.commits):
            lane = lane_of[row]
            labels = [_svg_label(name, lane.colour, "bold") for name in commit.branches]
            labels += [_svg_label(name, _TAG_COLOUR, "normal") for name in commit.tags]
            names = f" ({', '.join(labels)})" if labels else ""
            shapes.append(
                f'<circle cx="{_get_x(lane.column)}" cy="{_get_y(row)}" r="5" fill="{lane.colour}"/>'
            )
            shapes.append(
                f'<text x="{text_x}" y="{_get_y(row) + 4}" fill="#888">{commit.id[:_ID_LENGTH]}{names} '
                f"{html.escape(commit.title)}</text>"
            )
            letters = _ID_LENGTH + 4 + sum(len(n) + 2 for n in (*commit.branches, *commit.tags))
            widest = max(widest, letters + len(commit.title))
        width, height = text_x + _LETTER_PX * widest + _MARGIN_PX, _get_y(len(self.commits))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        return "\n".join([f'{head} font-family="monospace" font-size="13">', *shapes, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Lane:
    """A vertical line: a chain of snapshots, or the connection of a merge commit to the merged snapshot."""

    number: int
    column: int
    rows: tuple[int, ...]
    joins: int | None
    """The row of the parent or merged snapshot, in another lane, at which this lane ends."""
    merge: int | None
    """The row of the merge commit, in another lane, where this lane starts."""

    @property
    def start(self) -> int:
        return self.rows[0] if self.merge is None else self.merge

    @property
    def end(self) -> int:
        return self.rows[-1] if self.joins is None else self.joins

    @property
    def colour(self) -> str:
        return _COLOURS[self.number % len(_COLOURS)]


@dataclass(frozen=True, slots=True)
class _Chain:
    """A chain of snapshots, each the parent of the previous one: their rows, and the row where the chain
    joins another.
    """

    rows: tuple[int, ...]
    joins: int | None


def _assign_lanes(commits: Sequence[GraphCommit]) -> Iterator[_Lane]:
    """Assign chains and merges to columns: the leftmost free column to the right of the lanes they join."""
    chains = list(_split_into_chains(commits))
    chain_of = {row: number for number, chain in enumerate(chains) for row in chain.rows}
    extended, lines = _find_merges(commits, chains, chain_of)
    columns = _Columns()
    column_of: dict[int, int] = {}
    for number, chain in enumerate(chains):
        merge = extended.get(number)
        beside = [column_of[row] for row in (chain.joins, merge) if row is not None]
        end = chain.rows[-1] if chain.joins is None else chain.joins
        column = columns.take(1 + max(beside, default=-1), chain.rows[0] if merge is None else merge, end)
        column_of |= dict.fromkeys(chain.rows, column)
        yield _Lane(number, column, chain.rows, chain.joins, merge)
    for number, (merge, target) in enumerate(lines, len(chains)):
        column = columns.take(1 + max(column_of[merge], column_of[target]), merge, target)
        yield _Lane(number, column, (), target, merge)


def _split_into_chains(commits: Sequence[GraphCommit]) -> Iterator[_Chain]:
    """Split the history into chains: main first, then other branches by name, then unnamed tips."""
    row_of = {commit.id: row for row, commit in enumerate(commits)}
    parents = {commit.parent_id for commit in commits}
    tips = [row for row, commit in enumerate(commits) if commit.branches or commit.id not in parents]
    taken: set[int] = set()
    for tip in sorted(tips, key=lambda row: _make_lane_key(commits[row])):
        rows = []
        at: int | None = tip
        while at is not None and at not in taken:
            rows.append(at)
            taken.add(at)
            at = row_of.get(commits[at].parent_id or "")
        if rows:
            yield _Chain(tuple(rows), at)


def _find_merges(
    commits: Sequence[GraphCommit], chains: Sequence[_Chain], chain_of: Mapping[int, int]
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the chains that start at a merge, and the merges that need a separate line to a snapshot."""
    row_of = {commit.id: row for row, commit in enumerate(commits)}
    extended: dict[int, int] = {}
    lines = []
    for row in reversed(range(len(commits))):
        for id in dict.fromkeys(commits[row].merged_ids):
            target = row_of.get(id)
            if target is None or target <= row or id == commits[row].parent_id:
                continue  # the merged snapshot has expired, or the metadata is wrong
            number = chain_of[target]
            if chains[number].rows[0] == target and chain_of[row] < number and number not in extended:
                extended[number] = row
            else:
                lines.append((row, target))
    return extended, lines[::-1]


class _Columns:
    """The columns of the drawing, and the rows in which each column is in use."""

    def __init__(self) -> None:
        self._used: list[list[tuple[int, int]]] = []

    def take(self, first: int, start: int, end: int) -> int:
        """Reserve the leftmost column, at or after `first`, that is free from row `start` to row `end`.

        Lanes that do not fit into the drawing share one extra column.
        """
        candidates = range(first, len(self._used))
        column = next((each for each in candidates if self._is_free(each, start, end)), len(self._used))
        if column >= _MAX_COLUMNS:
            return _MAX_COLUMNS
        if column == len(self._used):
            self._used.append([])
        insort(self._used[column], (start, end))
        return column

    def _is_free(self, column: int, start: int, end: int) -> bool:
        spans = self._used[column]
        at = bisect_left(spans, (start, end))
        return (at == 0 or spans[at - 1][1] < start) and (at == len(spans) or end < spans[at][0])


def _make_lane_key(commit: GraphCommit) -> tuple[bool, bool, tuple[str, ...], int]:
    return ("main" not in commit.branches, not commit.branches, commit.branches, -commit.written_at_us)


def _sort_newest_first(commits: Mapping[str, GraphCommit]) -> Iterator[GraphCommit]:
    """Sort commits by time, but place each commit after all of its children, because clocks may differ."""
    above = {
        commit.id: {commit.parent_id or "", *commit.merged_ids} & commits.keys()
        for commit in commits.values()
    }
    found = list(_sort_topologically(commits, above))
    if len(found) < len(commits):  # cyclic metadata: a snapshot claims to be merged into its own ancestor
        above = {id: {commits[id].parent_id or ""} & commits.keys() for id in commits}
        found = list(_sort_topologically(commits, above))
    return iter(found)


def _sort_topologically(
    commits: Mapping[str, GraphCommit], parents: Mapping[str, set[str]]
) -> Iterator[GraphCommit]:
    children = dict.fromkeys(commits, 0)
    for ids in parents.values():
        for id in ids:
            children[id] += 1
    ready = [(-commits[id].written_at_us, id) for id, count in children.items() if not count]
    heapq.heapify(ready)
    while ready:
        commit = commits[heapq.heappop(ready)[1]]
        yield commit
        for id in parents[commit.id]:
            children[id] -= 1
            if not children[id]:
                heapq.heappush(ready, (-commits[id].written_at_us, id))


def _svg_lane(lane: _Lane, lane_of: Mapping[int, _Lane]) -> str:
    return f'<path d="{_svg_path(lane, lane_of)}" stroke="{lane.colour}" stroke-width="2" fill="none"/>'


def _svg_path(lane: _Lane, lane_of: Mapping[int, _Lane]) -> str:
    """Return the SVG path of a lane, from its merge or first snapshot down to its last row."""
    path, column, y = f"M {_get_x(lane.column)} {_get_y(lane.start)}", lane.column, _get_y(lane.start)
    if lane.merge is not None:
        column = lane_of[lane.merge].column
        path = f"M {_get_x(column)} {y}"
        if lane.end > lane.merge + 1:
            path, column, y = (
                f"{path} {_svg_bend(column, lane.column, y + _ROW_PX)}",
                lane.column,
                y + _ROW_PX,
            )
    if lane.joins is None:
        path += f" V {_get_y(lane.end)}"
    else:
        path += f" V {max(y, _get_y(lane.joins) - _ROW_PX)}"
        path += f" {_svg_bend(column, lane_of[lane.joins].column, _get_y(lane.joins))}"
    return path


def _svg_bend(start: int, end: int, y: int) -> str:
    """Return the SVG curve from one column to another that ends at `y`, one row further down."""
    bend = y - _ROW_PX // 2
    return f"C {_get_x(start)} {bend}, {_get_x(end)} {bend}, {_get_x(end)} {y}"


def _svg_label(name: str, colour: str, weight: str) -> str:
    return f'<tspan font-weight="{weight}" fill="{colour}">{html.escape(escape_control(name))}</tspan>'


def _get_x(lane: int) -> int:
    return _MARGIN_PX + _LANE_PX * lane


def _get_y(row: int) -> int:
    return _MARGIN_PX + _ROW_PX * row
