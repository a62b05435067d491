"""Virtual datasets: the contents of files as Zarr arrays, and the locations of their chunks.

They are plain frozen values, small enough to travel: a Spark task parses a file and sends its dataset to the
driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe._internal.printable import printable
from icefloe.virtual.errors import Refused
from icefloe.virtual.sources import Source, access_by
from icefloe.virtual.variables import VirtualVariable, loaded_variable, with_dimension

if TYPE_CHECKING:
    from icefloe.store import IcechunkStore


@dataclass(frozen=True, slots=True, eq=False)
class VirtualDataset:
    """A group of variables, and groups below it."""

    variables: Mapping[str, VirtualVariable]
    sources: tuple[Source, ...]
    """The files, each as it was when it was parsed; groups below have the same."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, VirtualDataset] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    """What the file also has; of this group only."""

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return {
            name: size
            for variable in self.variables.values()
            for name, size in zip(variable.dimensions, variable.shape, strict=True)
        }

    def walk(self, path: str = "") -> Iterator[tuple[str, VirtualDataset]]:
        """This group and all below it, with their paths."""
        yield path, self
        for name, group in self.groups.items():
            yield from group.walk(f"{path}/{name}" if path else name)

    def all_refused(self) -> list[Refused]:
        """What was refused here and in the groups below."""
        return [
            replace(each, variable=f"{path}/{each.variable}" if path else each.variable)
            for path, group in self.walk()
            for each in group.refused
        ]

    def drop_variables(self, *names: str) -> VirtualDataset:
        """Without these variables, be they refused or not."""
        return replace(
            self,
            variables={name: each for name, each in self.variables.items() if name not in names},
            refused=tuple(each for each in self.refused if each.variable not in names),
        )

    def drop_refused(self) -> VirtualDataset:
        """The same without a word on what was refused, here and below: it will be missing."""
        groups = {name: group.drop_refused() for name, group in self.groups.items()}
        return replace(self, refused=(), groups=groups)

    def expand_dims(
        self, dimension: str, value: Any = None, variables: Collection[str] | None = None
    ) -> VirtualDataset:
        """With one more dimension, of size 1, in front: to combine files that are a step of it each.

        It is given to all variables that are not loaded, or to those named. `value` makes a coordinate.
        """
        chosen = {
            name
            for name, each in self.variables.items()
            if (not each.loaded if variables is None else name in variables)
        }
        changed = {
            name: with_dimension(each, dimension) if name in chosen else each
            for name, each in self.variables.items()
        }
        if value is not None:
            changed[dimension] = loaded_variable((dimension,), np.asarray([value]), {})
        return replace(self, variables=changed)

    def to_icechunk(
        self,
        store: IcechunkStore,
        *,
        group: str | None = None,
        append_dim: str | None = None,
        region: Mapping[str, slice] | None = None,
        validate_containers: bool = True,
    ) -> None:
        """Write arrays and references to the store of a writable session. Nothing is committed.

        New arrays are made, unless the data is to go behind what is there along `append_dim`, or in place of
        a `region` of it; then arrays must agree in all that decoding needs. Every location must be in a
        virtual chunk container of the repository, unless `validate_containers` is False.
        CannotVirtualizeError where variables were refused: see `drop_refused`.
        """
        from icefloe.virtual.write import write_dataset  # below it lies the whole of zarr

        write_dataset(
            self,
            store,
            group=group,
            append_dim=append_dim,
            region=region,
            validate_containers=validate_containers,
        )

    def to_xarray(self, **options: Any) -> Any:
        """The dataset through xarray, lazily, values decoded from the files. `options` are `open_zarr`'s.

        Files of this machine and those that need no credentials can be read so. Variables that were refused
        are missing.
        """
        from icefloe.virtual.values import open_dataset

        reach = access_by(options.pop("store", None), options.pop("credential", None))
        return open_dataset(self, reach, **options)

    def __repr__(self) -> str:
        lines = [f"<VirtualDataset of {len(self.sources)} files>"]
        lines += [f"  {name}: {variable!r}" for name, variable in self.variables.items()]
        lines += [f"  refused {each.sentence}" for each in self.refused]
        lines += [f"  group {name}" for name in self.groups]
        return "\n".join(map(printable, lines))


def with_sources(dataset: VirtualDataset, sources: tuple[Source, ...]) -> VirtualDataset:
    """Return the dataset and its groups with other sources, in the same order."""
    groups = {name: with_sources(group, sources) for name, group in dataset.groups.items()}
    return replace(dataset, sources=sources, groups=groups)
