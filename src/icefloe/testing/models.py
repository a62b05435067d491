"""Models to hold a repository against: a memory store that moves and shifts, and descriptions of a hierarchy.

The names are those of `icechunk.testing.models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.api.asynchronous import open_group
from zarr.core.sync import sync
from zarr.storage import MemoryStore

__all__ = ["ArrayNode", "GroupNode", "ModelStore"]


class ModelStore(MemoryStore):
    """Zarr's memory store with what a session can do besides: move nodes and shift chunks."""

    spec_version: int = 2
    """The version of the format that the modelled repository has; for the test to keep."""

    async def shift_array(
        self, array_path: str, offset: tuple[int, ...], num_chunks: tuple[int, ...]
    ) -> None:
        """Put each chunk of a grid of `num_chunks` `offset` further; what leaves the grid is lost."""
        prefix = "/".join(filter(None, (array_path.strip("/"), "c")))
        shifted = {}
        for index in product(*map(range, num_chunks)):
            data = self._store_dict.pop("/".join([prefix, *map(str, index)]), None)
            target = tuple(i + by for i, by in zip(index, offset, strict=True))
            if data is not None and all(0 <= i < n for i, n in zip(target, num_chunks, strict=True)):
                shifted["/".join([prefix, *map(str, target)])] = data
        self._store_dict.update(shifted)

    async def move(self, source: str, dest: str) -> None:
        """Move a node and all below it. Both paths are absolute; ValueError where they are not."""
        if not (source.startswith("/") and dest.startswith("/")):
            raise ValueError(
                f"move from {source!r} to {dest!r}: both paths must be absolute, they begin with '/'"
            )
        before = f"{source}/".lstrip("/")
        after = f"{dest}/".lstrip("/")
        for key in [key for key in self._store_dict if key.startswith(before)]:
            self._store_dict[after + key.removeprefix(before)] = self._store_dict.pop(key)

    async def copy(self) -> ModelStore:
        """Another store with the same keys and values."""
        other = type(self)(dict(self._store_dict), read_only=self.read_only)
        other.spec_version = self.spec_version
        return other


@dataclass(frozen=True)
class ArrayNode:
    """An array without data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


SMALL_ARRAY: Final = ArrayNode((1,), np.dtype("int32"))
"""The array of a tree in which only the paths matter."""


@dataclass(frozen=True)
class GroupNode:
    """A group and all below it, as a value that can be written into any store.

    Paths in a tree have no slash in front, and the root is the empty one.
    """

    children: dict[str, ArrayNode | GroupNode] = field(default_factory=dict)

    def walk(self, prefix: str | PurePosixPath = "") -> Iterator[tuple[PurePosixPath, Node]]:
        """Every node below this one with its path, a group before what is in it."""
        for name, child in self.children.items():
            path = PurePosixPath(prefix) / name
            yield path, child
            if isinstance(child, GroupNode):
                yield from child.walk(path)

    def nodes(self, prefix: str = "", *, include_root: bool = False) -> list[str]:
        """The paths of all nodes."""
        return [*[prefix][:include_root], *(str(path) for path, _ in self.walk(prefix))]

    def groups(self, prefix: str = "", *, include_root: bool = False) -> list[str]:
        """The paths of all groups."""
        below = (str(path) for path, node in self.walk(prefix) if isinstance(node, GroupNode))
        return [*[prefix][:include_root], *below]

    def arrays(self, prefix: str = "") -> list[str]:
        """The paths of all arrays."""
        return [str(path) for path, node in self.walk(prefix) if isinstance(node, ArrayNode)]

    def materialize(self, store: Store) -> zarr.Group:
        """Write these nodes into a store; gives the root group."""
        root = zarr.open_group(store, mode="a", zarr_format=3)
        for path, node in self.walk():
            if isinstance(node, GroupNode):
                root.create_group(str(path))
            else:
                root.create_array(str(path), shape=node.shape, dtype=node.dtype)
        return root

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> GroupNode:
        """The tree of nested dictionaries with arrays as leaves."""
        children = {
            name: child if isinstance(child, ArrayNode | GroupNode) else cls.from_dict(child)
            for name, child in d.items()
        }
        return cls(children)

    @classmethod
    def from_paths(cls, arrays: set[str], groups: set[str]) -> GroupNode:
        """The tree of these absolute paths. Groups that lie on the way need not be named.

        ValueError for a path that is not absolute, and for an array that holds other nodes.
        """
        return cls._from_nodes(
            [*((path, GroupNode()) for path in groups), *((p, SMALL_ARRAY) for p in arrays)]
        )

    @classmethod
    def from_store(cls, store: Store) -> GroupNode:
        """The tree that is in a store."""
        return sync(cls.from_store_async(store))

    @classmethod
    async def from_store_async(cls, store: Store) -> GroupNode:
        """The tree that is in a store."""
        root = await open_group(store=store, mode="r")
        found: list[tuple[str, Node]] = []
        async for path, member in root.members(max_depth=None):
            if isinstance(member, zarr.AsyncArray):
                found.append((f"/{path}", ArrayNode(member.shape, member.dtype)))
            else:
                found.append((f"/{path}", GroupNode()))
        return cls._from_nodes(found)

    @classmethod
    def _from_nodes(cls, found: Iterable[tuple[str, Node]]) -> GroupNode:
        root = cls()
        for path, node in sorted(found, key=lambda item: item[0].split("/")):
            if not path.startswith("/"):
                raise ValueError(f"{path!r} is not an absolute path: it must begin with '/'")
            *parents, name = path.split("/")[1:]
            if not name and isinstance(node, GroupNode):
                continue
            group = root
            for parent in parents:
                inner = group.children.setdefault(parent, GroupNode())
                if not isinstance(inner, GroupNode):
                    raise ValueError(f"{path!r} lies in an array: only groups hold nodes")
                group = inner
            if not name or group.children.setdefault(name, node) != node:
                raise ValueError(f"{path!r} is named as a group and as an array")
        return root


Node: TypeAlias = ArrayNode | GroupNode
"""What a tree is made of."""
