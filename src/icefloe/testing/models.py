"""Test models of stores and hierarchies; same names as in `icechunk.testing.models`."""

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
from zarr.storage import MemoryStore

from icefloe._internal.private_imports import run_zarr_coroutine

__all__ = ["ArrayNode", "GroupNode", "ModelStore"]


class ModelStore(MemoryStore):
    """A test model of a session's store: a memory store that can also move nodes and shift chunks."""

    spec_version: int = 2
    """The format version of the modelled repository. Tests set it."""

    async def shift_array(
        self, array_path: str, offset: tuple[int, ...], num_chunks: tuple[int, ...]
    ) -> None:
        """Shift all chunks of an array by an offset. Chunks that leave the grid are dropped.

        Parameters
        ----------
        array_path
            The path of the array.
        offset
            The number of chunks to shift along each dimension.
        num_chunks
            The number of chunks along each dimension.
        """
        prefix = "/".join(filter(None, (array_path.strip("/"), "c")))
        shifted = {}
        for index in product(*map(range, num_chunks)):
            data = self._store_dict.pop("/".join([prefix, *map(str, index)]), None)
            target = tuple(i + by for i, by in zip(index, offset, strict=True))
            if data is not None and all(0 <= i < n for i, n in zip(target, num_chunks, strict=True)):
                shifted["/".join([prefix, *map(str, target)])] = data
        self._store_dict.update(shifted)

    async def move(self, source: str, dest: str) -> None:
        """Move a node and everything below it.

        Parameters
        ----------
        source, dest
            The old and the new path, both absolute.

        Raises
        ------
        ValueError
            If a path is not absolute.
        """
        if not (source.startswith("/") and dest.startswith("/")):
            raise ValueError(f"move from {source!r} to {dest!r}: both paths must be absolute")
        before = f"{source}/".lstrip("/")
        after = f"{dest}/".lstrip("/")
        for key in [key for key in self._store_dict if key.startswith(before)]:
            self._store_dict[after + key.removeprefix(before)] = self._store_dict.pop(key)

    async def copy(self) -> ModelStore:
        """Return a copy of this store with the same keys and values.

        Returns
        -------
        ModelStore
        """
        other = type(self)(dict(self._store_dict), read_only=self.read_only)
        other.spec_version = self.spec_version
        return other


@dataclass(frozen=True)
class ArrayNode:
    """A test model of an array: its metadata without data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


SMALL_ARRAY: Final = ArrayNode((1,), np.dtype("int32"))
"""The array to use in trees in which only paths matter."""


@dataclass(frozen=True)
class GroupNode:
    """A test model of a group and everything below it, which can be written to any store.

    Paths in a tree do not start with a slash, and the path of the root is empty.
    """

    children: dict[str, ArrayNode | GroupNode] = field(default_factory=dict)

    def walk(self, prefix: str | PurePosixPath = "") -> Iterator[tuple[PurePosixPath, Node]]:
        """Yield the paths and nodes below this group, each group before its children.

        Parameters
        ----------
        prefix
            The path of this group.

        Yields
        ------
        tuple of path and node
        """
        for name, child in self.children.items():
            path = PurePosixPath(prefix) / name
            yield path, child
            if isinstance(child, GroupNode):
                yield from child.walk(path)

    def nodes(self, prefix: str = "", *, include_root: bool = False) -> list[str]:
        """Return the paths of all nodes in this group.

        Parameters
        ----------
        prefix
            The path of this group.
        include_root
            Include this group.

        Returns
        -------
        list of str
        """
        return [*[prefix][:include_root], *(str(path) for path, _ in self.walk(prefix))]

    def groups(self, prefix: str = "", *, include_root: bool = False) -> list[str]:
        """Return the paths of all groups in this group.

        Parameters
        ----------
        prefix
            The path of this group.
        include_root
            Include this group.

        Returns
        -------
        list of str
        """
        below = (str(path) for path, node in self.walk(prefix) if isinstance(node, GroupNode))
        return [*[prefix][:include_root], *below]

    def arrays(self, prefix: str = "") -> list[str]:
        """Return the paths of all arrays in this group.

        Parameters
        ----------
        prefix
            The path of this group.

        Returns
        -------
        list of str
        """
        return [str(path) for path, node in self.walk(prefix) if isinstance(node, ArrayNode)]

    def materialize(self, store: Store) -> zarr.Group:
        """Write the nodes of this group to a store.

        Parameters
        ----------
        store
            The store.

        Returns
        -------
        zarr.Group
            The root group.
        """
        root = zarr.open_group(store, mode="a", zarr_format=3)
        for path, node in self.walk():
            if isinstance(node, GroupNode):
                root.create_group(str(path))
            else:
                root.create_array(str(path), shape=node.shape, dtype=node.dtype)
        return root

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> GroupNode:
        """Create a group model from nested dictionaries with arrays as leaves.

        Parameters
        ----------
        d
            The dictionary.

        Returns
        -------
        GroupNode
        """
        children = {
            name: child if isinstance(child, ArrayNode | GroupNode) else cls.from_dict(child)
            for name, child in d.items()
        }
        return cls(children)

    @classmethod
    def from_paths(cls, arrays: set[str], groups: set[str]) -> GroupNode:
        """Create a group model with nodes at the given absolute paths.

        Parameters
        ----------
        arrays, groups
            The paths of arrays and groups. Parents of other nodes may be omitted.

        Returns
        -------
        GroupNode

        Raises
        ------
        ValueError
            If a path is not absolute, or an array contains other nodes.
        """
        return cls._from_nodes(
            [*((path, GroupNode()) for path in groups), *((p, SMALL_ARRAY) for p in arrays)]
        )

    @classmethod
    def from_store(cls, store: Store) -> GroupNode:
        """Create a group model from the hierarchy in a store.

        Parameters
        ----------
        store
            The store.

        Returns
        -------
        GroupNode
        """
        return run_zarr_coroutine(cls.from_store_async(store))

    @classmethod
    async def from_store_async(cls, store: Store) -> GroupNode:
        """Create a group model from the hierarchy in an asynchronous store.

        Parameters
        ----------
        store
            The store.

        Returns
        -------
        GroupNode
        """
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
                raise ValueError(f"{path!r} is not an absolute path")
            *parents, name = path.split("/")[1:]
            if not name and isinstance(node, GroupNode):
                continue
            group = root
            for parent in parents:
                inner = group.children.setdefault(parent, GroupNode())
                if not isinstance(inner, GroupNode):
                    raise ValueError(f"{path!r} is below an array: only groups contain nodes")
                group = inner
            if not name or group.children.setdefault(name, node) != node:
                raise ValueError(f"{path!r} is both a group and an array")
        return root


Node: TypeAlias = ArrayNode | GroupNode
"""A node of a tree."""
