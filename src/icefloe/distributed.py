"""Writing from many processes: forks and receipts brought together, and made one commit.

A fork goes out to a worker, is written to there, and comes home in one of two ways: pickled as it is, or as a
*receipt*, the bytes of what it changed. A receipt is smaller, holds no credentials, and is all that the
committer needs.

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
    """The session behind a Zarr array. `axis` and `keepdims` are there for dask's reductions."""
    store: object = zarray.store
    if not isinstance(store, IcechunkStore):
        raise TypeError(f"the array is in a {type(store).__name__}, not in the store of a session")
    session: Session = store.session
    return session


def merge_sessions(*sessions: ForkSession | list[ForkSession] | list[list[ForkSession]]) -> ForkSession:
    """One fork with the changes of all: the first, into which the others are merged in the order given.

    Lists are taken apart, however deep. See `Session.merge` for what cannot be merged.
    """
    forks = []
    for fork in _flattened(sessions):
        if not isinstance(fork, ForkSession):
            raise TypeError(
                f"merge_sessions takes forks. Received '{type(fork).__name__}' instead; to merge forks into a"
                " session on a branch use Session.merge(*forks)"
            )
        forks.append(fork)
    if not forks:
        raise ValueError("merge_sessions needs at least one fork")
    first, *others = forks
    first.merge(*others)
    return first


def receipt(fork: ForkSession) -> bytes:
    """What a fork changed, as bytes for `commit_forks`: some bytes per chunk, and no credentials."""
    if not isinstance(fork, ForkSession):
        raise TypeError(f"a receipt is of a fork, not of a '{type(fork).__name__}'; see Session.fork")
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
    """Make one commit of what many forks changed, and of the session's own changes; its id.

    Each fork comes as itself or as its `receipt`. They are merged in the order given, by the rules of
    `Session.merge`: where several wrote the same chunk the last one wins. If they cannot be merged, nothing
    is, and the session can still be committed without them. The other arguments are those of
    `Session.commit`. References are sorted once per array, however many forks there are.
    """
    session._merge_receipts([each if isinstance(each, bytes) else _checked(each) for each in forks])
    return session.commit(
        message,
        metadata,
        rebase_with=rebase_with,
        rebase_tries=rebase_tries,
        allow_empty=allow_empty,
    )


def _checked(fork: object) -> ForkSession:
    if not isinstance(fork, ForkSession):
        raise TypeError(f"commit_forks takes forks and receipts, not a '{type(fork).__name__}'")
    return fork


def _flattened(items: Iterable[object]) -> Iterator[object]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flattened(item)
        else:
            yield item
