"""The conflict solver for sessions that append to the same arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icefloe.conflicts import ConflictSolver
from icefloe.core.chunk_values import Values, decode_chunk, encode_chunk
from icefloe.core.merge.append_inputs import Appended
from icefloe.core.merge.row_placement import AppendOrder

__all__ = ["AppendSolver"]

_ORDERS = ("commit", "sorted", "strict")


class AppendSolver(ConflictSolver):
    """A conflict solver for sessions that append along the same dimension. It keeps the rows of both sides.

    Rows are matched by their label, the value of the coordinate of the dimension. Labels that only one side
    appended are kept. If both sides appended a label, its values must be equal, or the two sides must have
    written different arrays. All other conflicts make the rebase fail.

    Parameters
    ----------
    dim
        The dimension along which the sessions append.
    order
        "commit" places later commits after earlier ones. "sorted" inserts rows by label, provided that they
        form whole chunks. "strict" fails if a label is not after the last one.
    """

    def __init__(self, dim: str, *, order: AppendOrder = "commit") -> None:
        if order not in _ORDERS:
            raise ValueError(f"order must be one of {', '.join(_ORDERS)}, not {order!r}")
        self.dim = dim
        self.order = order
        self.appended: tuple[Appended, ...] = ()
        """Records of how the latest rebase placed rows, one per dataset; empty if there was no concurrent
        append.
        """
        self.num_rebases = 0
        """The number of rebases that merged the rows of several writers."""

    def decode(self, document: Mapping[str, Any], shape: Sequence[int], data: bytes | None) -> Values:
        """Decode a chunk so that the solver can merge its rows.

        Parameters
        ----------
        document
            The metadata of the array.
        shape
            The shape of the chunk.
        data
            The stored bytes; None if the chunk is not stored.

        Returns
        -------
        numpy.ndarray
            The values.
        """
        return decode_chunk(document, shape, data)

    def encode(self, document: Mapping[str, Any], values: Values) -> bytes | None:
        """Encode a chunk whose rows the solver has merged.

        Parameters
        ----------
        document
            The metadata of the array.
        values
            The values of the chunk.

        Returns
        -------
        bytes or None
            The bytes to store; None if all values are the fill value.
        """
        return encode_chunk(document, values)

    def note(self, done: Sequence[Appended]) -> None:
        """Store the records that describe how a rebase placed the appended rows.

        Parameters
        ----------
        done
            One record per dataset.
        """
        self.appended = tuple(done)
        self.num_rebases += 1
