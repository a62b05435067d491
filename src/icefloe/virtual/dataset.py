"""Virtual datasets: Zarr arrays that describe the contents of files, with the locations of their chunks.

A virtual dataset is small, so a Spark task can parse a file and send the dataset to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe._internal.printable import escape_control
from icefloe.virtual.errors import CannotVirtualizeError, Refused
from icefloe.virtual.sources import Source, make_access
from icefloe.virtual.variables import VirtualVariable, make_loaded_variable, with_dimension

if TYPE_CHECKING:
    from icefloe.config.stores import AnyObjectStoreConfig
    from icefloe.credentials import AnyCredential
    from icefloe.store import IcechunkStore


@dataclass(frozen=True, slots=True, eq=False)
class VirtualDataset:
    """A virtual dataset: a group of virtual variables, and its subgroups.

    Parameters
    ----------
    variables
        The variables of the group by name.
    sources
        The files that references point to. All subgroups share them.
    attributes
        The attributes of the group.
    groups
        The subgroups by name.
    refused
        Variables of the group that cannot be expressed as references.
    """

    variables: Mapping[str, VirtualVariable]
    sources: tuple[Source, ...]
    """The source files, each with its state at the time of parsing."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, VirtualDataset] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension of a virtual dataset."""
        return {
            name: size
            for variable in self.variables.values()
            for name, size in zip(variable.dimensions, variable.shape, strict=True)
        }

    def walk(self, path: str = "") -> Iterator[tuple[str, VirtualDataset]]:
        """Iterate over this group of a virtual dataset and all its subgroups.

        Parameters
        ----------
        path
            The path of this group.

        Yields
        ------
        tuple
            The path of the group, and the group.
        """
        yield path, self
        for name, group in self.groups.items():
            yield from group.walk(f"{path}/{name}" if path else name)

    def map_variables(
        self, function: Callable[[str, VirtualVariable], VirtualVariable | None], path: str = ""
    ) -> VirtualDataset:
        """Apply a function to every variable of a virtual dataset and its subgroups.

        Parameters
        ----------
        function
            A function of the path and the variable. It returns the new variable, or None to drop it.
        path
            The path of this group.

        Returns
        -------
        VirtualDataset
            The dataset with the new variables.
        """
        prefix = f"{path}/" if path else ""
        found = {name: function(prefix + name, each) for name, each in self.variables.items()}
        return replace(
            self,
            variables={name: each for name, each in found.items() if each is not None},
            groups={name: each.map_variables(function, prefix + name) for name, each in self.groups.items()},
        )

    def all_refused(self) -> list[Refused]:
        """List the variables of a virtual dataset and its subgroups that could not be virtualized.

        Returns
        -------
        list of Refused
            One entry per variable.
        """
        return [
            replace(each, variable=f"{path}/{each.variable}" if path else each.variable)
            for path, group in self.walk()
            for each in group.refused
        ]

    def drop_variables(self, *names: str) -> VirtualDataset:
        """Drop variables from a virtual dataset. The names may include refused variables.

        Parameters
        ----------
        *names
            Names of variables of this group.

        Returns
        -------
        VirtualDataset
            The dataset without the variables.
        """
        return replace(
            self,
            variables={name: each for name, each in self.variables.items() if name not in names},
            refused=tuple(each for each in self.refused if each.variable not in names),
        )

    def drop_refused(self) -> VirtualDataset:
        """Drop the variables that could not be virtualized, so that the dataset can be written.

        Returns
        -------
        VirtualDataset
            A dataset without refused variables.
        """
        groups = {name: group.drop_refused() for name, group in self.groups.items()}
        return replace(self, refused=(), groups=groups)

    def expand_dims(
        self, dimension: str, value: Any = None, variables: Collection[str] | None = None
    ) -> VirtualDataset:
        """Insert a leading dimension of length 1 into a virtual dataset, for combining files with one step
        each.

        Parameters
        ----------
        dimension
            Name of the new dimension.
        value
            The coordinate value. By default, the dimension has no coordinate.
        variables
            Names of the variables that get the dimension. By default, all variables that are not loaded.

        Returns
        -------
        VirtualDataset
            The dataset with the dimension.

        Raises
        ------
        ValueError
            If a variable already has the dimension.
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
            changed[dimension] = make_loaded_variable((dimension,), np.asarray([value]), {})
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
        """Write the arrays and references of a virtual dataset to a writable session, without committing.

        Parameters
        ----------
        store
            The store of a writable session, or the session.
        group
            Path of the group to write to. By default, the root group.
        append_dim
            Append to existing arrays along this dimension. They must have the same encoding.
        region
            Replace this region of existing arrays.
        validate_containers
            Check that every referenced location is in a virtual chunk container of the repository.

        Raises
        ------
        CannotVirtualizeError
            If the dataset has refused variables; `drop_refused` removes them.
        AlreadyExistsError
            If an array of the same name exists.
        NodeNotFoundError
            If an array to append to does not exist.
        InvalidInputError
            If an existing array has a different encoding, or a location is not in any container.
        """
        from icefloe.virtual.write import write_dataset  # imports zarr

        write_dataset(
            self,
            store,
            group=group,
            append_dim=append_dim,
            region=region,
            validate_containers=validate_containers,
        )

    def to_xarray(
        self,
        *,
        store: AnyObjectStoreConfig | None = None,
        credential: AnyCredential | None = None,
        **options: Any,
    ) -> Any:
        """Open a virtual dataset lazily with xarray. Values are read from the source files on access.

        Parameters
        ----------
        store
            The object store configuration for remote files, as in `virtualize`.
        credential
            The credential for the store, as in `virtualize`.
        **options
            Keyword arguments passed to `xarray.open_zarr`.

        Returns
        -------
        xarray.Dataset
            All variables that were not refused.
        """
        from icefloe.virtual.values import open_dataset

        return open_dataset(self, make_access(store, credential), **options)

    def __repr__(self) -> str:
        from icefloe._internal.amounts import counted

        lines = [f"<VirtualDataset of {counted(len(self.sources), 'file')}>"]
        lines += [f"  {name}: {variable!r}" for name, variable in self.variables.items()]
        lines += [f"  refused {each.sentence}" for each in self.refused]
        lines += [f"  group {name}" for name in self.groups]
        return "\n".join(map(escape_control, lines))


def choose_group(dataset: VirtualDataset, group: str | None, location: str) -> VirtualDataset:
    """Return a subgroup of a virtual dataset by name. None selects the root group."""
    if group is None:
        return dataset
    if group not in dataset.groups:
        names = ", ".join(dataset.groups) or "none"
        raise CannotVirtualizeError(f"{location} has no group {group!r}; its groups are {names}")
    return dataset.groups[group]


def with_sources(dataset: VirtualDataset, sources: tuple[Source, ...]) -> VirtualDataset:
    """Replace the source files of a virtual dataset and its subgroups."""
    groups = {name: with_sources(group, sources) for name, group in dataset.groups.items()}
    return replace(dataset, sources=sources, groups=groups)
