"""A session and its model, which are changed together and compared on every read."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from zarr.core.buffer import cpu

from icefloe.session import Session
from icefloe.types import SessionMode
from tests.support.simulation import model
from tests.support.simulation.audit import Violation, chunk_bytes, number

ACCOUNTS = "/accounts"
"""An array whose numbers always add up to the same: what is put into one is taken out of another."""
TOTAL = 1000

_NAMES = ("/a", "/b", "/g", "/g/c", "/g/d", "/h")
_GROUPS = ("/g", "/h")


class Twin:
    """A session of a repository together with the same session of the model."""

    def __init__(self, session: Session, tree: model.Tree) -> None:
        self.real = session
        self.mode = session.mode
        self.model = model.Session(session.snapshot_id, tree, session.branch or "")
        self.reads: dict[model.Cell, int | None] = {}
        """What was read in chunks of the base, before this session wrote there."""

    # Reading

    def read(self, path: str, index: int) -> int | None:
        """Read the number in a chunk, and compare it with the model."""
        tree = self.model.tree
        cell = (tree.nodes[path].key, index)
        found = self.real.store.get_sync(key_of(path, f"c/{index}"))
        value = None if found is None else number(found.to_bytes())
        if value != tree.cells.get(cell):
            raise Violation(f"read {value} in chunk {index} of {path}, expected {tree.cells.get(cell)}")
        if cell not in self.model.changes.cells:
            self.reads.setdefault(cell, value)
        return value

    def check_listing(self) -> None:
        """Compare all nodes and chunks with the model."""
        expected = set()
        for path, (_, _, values) in self.model.tree.plain().items():
            expected |= {key_of(path, "zarr.json"), *(key_of(path, f"c/{index}") for index in values)}
        found = set(self.real.store.list())
        if found != expected:
            raise Violation(f"listed {sorted(found)}, expected {sorted(expected)}")

    # Changes: what the session does in the model it does in reality

    def put(self, path: str, rows: int | None, label: int) -> None:
        """Create a node or change its metadata, after deleting chunks outside of a smaller shape."""
        old = self.model.tree.nodes.get(path)
        for index in range(rows or 0, (old.rows or 0) if old is not None else 0):
            self.write(path, index, None)
        self.real.store.set_sync(key_of(path, "zarr.json"), cpu.Buffer.from_bytes(document(rows, label)))
        self.model.put(path, rows, label)

    def write(self, path: str, index: int, value: int | None) -> None:
        """Write or delete a chunk."""
        key = key_of(path, f"c/{index}")
        if value is None:
            self.real.store.delete_sync(key)
        else:
            self.real.store.set_sync(key, cpu.Buffer.from_bytes(chunk_bytes(value)))
        self.model.write(path, index, value)

    def delete(self, path: str) -> None:
        """Delete a node and everything below it."""
        self.real.store.delete_sync(key_of(path, "zarr.json"))
        self.model.delete(path)

    def move(self, source: str, target: str) -> None:
        """Move a node and everything below it."""
        self.real.move(source, target)
        self.model.move(source, target)

    def transfer(self, source: int, target: int, amount: int) -> None:
        """Transfer an amount between two accounts."""
        balances = [self.read(ACCOUNTS, index) or 0 for index in (source, target)]
        self.write(ACCOUNTS, source, balances[0] - amount)
        self.write(ACCOUNTS, target, balances[1] + amount)

    def fork_and_merge(self, source: Random) -> str:
        """Let two forks write chunks, possibly the same ones, and merge them: the second wins."""
        tree = self.model.tree
        arrays = [path for path, node in sorted(tree.nodes.items()) if node.rows and path != ACCOUNTS]
        if not arrays or self.mode is SessionMode.rearrange:
            return "fork nothing"
        writes: list[tuple[str, int, int]] = []
        forks = [self.real.fork(), self.real.fork()]
        for fork in forks:
            path = source.choice(arrays)
            index, value = source.randrange(tree.nodes[path].rows or 1), source.randrange(1000)
            seen = fork.store.get_sync(key_of(path, f"c/{index}"))
            if (None if seen is None else number(seen.to_bytes())) != tree.cells.get(
                (tree.nodes[path].key, index)
            ):
                raise Violation(f"a fork does not see chunk {index} of {path} as its session does")
            fork.store.set_sync(key_of(path, f"c/{index}"), cpu.Buffer.from_bytes(chunk_bytes(value)))
            writes.append((path, index, value))
        self.real.merge(*forks)
        for write in writes:
            self.model.write(*write)
        return f"fork and merge {writes}"

    def discard(self) -> None:
        """Discard all changes."""
        self.real.discard_changes()
        self.model.changes = model.Changes()

    def rebase(self, base: str, tree: model.Tree, changes: model.Changes) -> None:
        """Rebase the model after the session was rebased."""
        self.model.base, self.model.base_tree, self.model.changes = base, tree, changes
        self.reads = {cell: value for cell, value in self.reads.items() if cell in changes.cells}

    @property
    def moves_money(self) -> bool:
        """Return True if accounts were changed: a partial merge of them would change the sum."""
        key = self.model.tree.nodes[ACCOUNTS].key
        return key in self.model.changes.arrays()

    # Random changes

    def change(self, source: Random) -> str:
        """Make one random change, and return its description."""
        if self.mode is SessionMode.rearrange:
            return self._move_something(source)
        nodes = self.model.tree.nodes
        free = [name for name in _NAMES if name not in nodes and _has_parent(name, nodes)]
        mine = [path for path in sorted(nodes) if path not in (ACCOUNTS, "/")]
        arrays = [path for path in mine if nodes[path].rows]
        match source.choice(
            ("transfer", "transfer", "write", "write", "write", "erase", "put", "put", "delete")
        ):
            case "write" | "erase" as verb if arrays:
                path = source.choice(arrays)
                index = source.randrange(nodes[path].rows or 1)
                value = None if verb == "erase" else source.randrange(1000)
                self.write(path, index, value)
                return f"write {path} {index} {value}"
            case "delete" if mine and source.random() < 0.5:
                path = source.choice(mine)
                self.delete(path)
                return f"delete {path}"
            case "put" if free or mine:
                path = source.choice(free + mine)
                rows = None if path in _GROUPS else source.randrange(1, 5)
                label = source.randrange(3)
                self.put(path, rows, label)
                return f"put {path} {rows} {label}"
        accounts = nodes[ACCOUNTS].rows or 0
        one, other = source.sample(range(accounts), 2)
        self.transfer(one, other, source.randrange(1, 9))
        return f"transfer {one} {other}"

    def _move_something(self, source: Random) -> str:
        nodes = self.model.tree.nodes
        mine = [path for path in sorted(nodes) if path not in (ACCOUNTS, "/")]
        free = [name for name in _NAMES if name not in nodes and _has_parent(name, nodes)]
        pairs = [(one, to) for one in mine for to in free if not to.startswith(one + "/")]
        pairs = [(one, to) for one, to in pairs if (one in _GROUPS) == (to in _GROUPS)]
        if not pairs:
            return "move nothing"
        one, to = source.choice(pairs)
        self.move(one, to)
        return f"move {one} {to}"


def key_of(path: str, rest: str) -> str:
    """Return the key of a document or chunk in a store."""
    return f"{path}/{rest}".lstrip("/")


def _has_parent(path: str, nodes: Any) -> bool:
    group = path.rpartition("/")[0]
    return not group or (group in nodes and nodes[group].rows is None)


def document(rows: int | None, label: int) -> bytes:
    """Return the zarr.json of a node of the model."""
    if rows is None:
        group = {"zarr_format": 3, "node_type": "group", "attributes": {"label": label}}
        return json.dumps(group).encode()
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows],
        "data_type": "int64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"label": label},
    }
    return json.dumps(array).encode()
