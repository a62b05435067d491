"""Write from many processes in one commit, using forks and receipts.

A worker receives a fork of the session and writes to it. It returns the fork itself, pickled, or its
*receipt*, an encoding of its changes. A receipt is smaller, contains no credentials, and is sufficient for
the commit.

    fork = session.fork()
    receipts = pool.map(write_region, [(fork, region) for region in regions])   # each returns receipt(fork)
    commit_forks(session, receipts, "all regions")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import zarr

from icefloe.session import ForkSession, Session
from icefloe.store import IcechunkStore

__all__ = ["commit_forks", "extract_session", "merge_sessions", "receipt"]


def extract_session(zarray: zarr.Array[Any], axis: Any = None, keepdims: Any = None) -> Session:
    """Return the session whose store contains a Zarr array.

    Parameters
    ----------
    zarray
        An array in the store of a session.
    axis, keepdims
        Ignored; dask passes them to reductions.

    Returns
    -------
    Session

    Raises
    ------
    TypeError
        If the array does not belong to a session.
    """
    store: object = zarray.store
    if not isinstance(store, IcechunkStore):
        raise TypeError(f"the array belongs to a {type(store).__name__}, not to the store of a session")
    session: Session = store.session
    return session


def merge_sessions(*sessions: ForkSession | list[ForkSession] | list[list[ForkSession]]) -> ForkSession:
    """Merge the forks of distributed writers into the first fork.

    Parameters
    ----------
    *sessions
        Forks, or nested lists of forks. Later ones take precedence; see `Session.merge`.

    Returns
    -------
    ForkSession
        The first fork, with the changes of all forks.

    Raises
    ------
    TypeError
        If an argument is not a fork.
    """
    forks = []
    for fork in _flatten(sessions):
        if not isinstance(fork, ForkSession):
            raise TypeError(
                f"merge_sessions takes forks. Received '{type(fork).__name__}' instead; to merge forks into a"
                " writable session use Session.merge(*forks)"
            )
        forks.append(fork)
    if not forks:
        raise ValueError("merge_sessions needs at least one fork")
    first, *others = forks
    first.merge(*others)
    return first


def receipt(fork: ForkSession) -> bytes:
    """Return the receipt of a fork: its changes encoded as bytes, for `commit_forks`.

    Parameters
    ----------
    fork
        The fork.

    Returns
    -------
    bytes
        The encoded changes, a few bytes per chunk, without credentials.
    """
    if not isinstance(fork, ForkSession):
        raise TypeError(f"expected a fork, not a '{type(fork).__name__}'; see Session.fork")
    return fork._receipt().to_bytes()


def commit_forks(
    session: Session,
    forks: Iterable[ForkSession | bytes],
    message: str,
    metadata: dict[str, Any] | None = None,
    *,
    rebase_with: Any | None = None,
    rebase_tries: int = 1000,
    allow_empty: bool = False,
) -> str:
    """Commit the changes of a session together with those of its forks in distributed writers.

    If the forks cannot be merged, nothing changes, and the session can still be committed without them.

    Parameters
    ----------
    session
        The session that was forked.
    forks
        Forks, or their receipts. If several wrote the same chunk, the last one wins; see `Session.merge`.
    message, metadata
        The message and metadata of the commit.
    rebase_with, rebase_tries, allow_empty
        See `Session.commit`.

    Returns
    -------
    str
        The id of the new snapshot.
    """
    session._merge_receipts([each if isinstance(each, bytes) else _check_fork(each) for each in forks])
    return session.commit(
        message,
        metadata,
        rebase_with=rebase_with,
        rebase_tries=rebase_tries,
        allow_empty=allow_empty,
    )


def _check_fork(fork: object) -> ForkSession:
    if not isinstance(fork, ForkSession):
        raise TypeError(f"commit_forks takes forks and receipts, not a '{type(fork).__name__}'")
    return fork


def _flatten(items: Iterable[object]) -> Iterator[object]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flatten(item)
        else:
            yield item
