"""The home page: the arrays on `main` with the periods they cover, and the size of the repository."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from icefloe._internal.concurrency import get_pool
from icefloe.derive.lineage import list_derived
from icefloe.errors import IcechunkError
from icefloe.serve import views
from icefloe.serve.asgi import RequestError
from icefloe.serve.requests import OpenVersions
from icefloe.serve.versions import Versions
from icefloe.serve.windows import ArrayView

_PATIENCE_S: Final = 0.5
"""How long, in seconds, a page waits for the size of a local repository."""
_MAX_ARRAYS: Final = 40
_MAX_PERIODS: Final = 10
"""The maximum number of time coordinates to read."""


class RepositorySize:
    """The total chunk size of a repository for the home page, which is computed in the background.

    Parameters
    ----------
    versions
        The versions of the repository.
    """

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._lock = threading.Lock()
        self._counting: tuple[Any, Future[str]] | None = None

    def count(self, history: dict[str, Any]) -> str:
        """Format the size of the repository. Return an empty string if there are many commits, or if it is
        not known soon enough.
        """
        if history["total"] > views.COMMITS_PER_PAGE:
            return ""
        key = tuple(each["id"] for each in history["commits"])
        with self._lock:
            if self._counting is None or (self._counting[0] != key and self._counting[1].done()):
                pool = get_pool("serve-size", 1)
                self._counting = key, pool.submit(views.total_size, self._versions.repo)
            counted_for, running = self._counting
        try:
            return running.result(self._patience_s) if counted_for == key else ""
        except TimeoutError:
            return ""
        except IcechunkError:
            self._counting = None  # the next request tries again
            return ""

    @property
    def _patience_s(self) -> float:
        return _PATIENCE_S if self._versions.answers_at_once else 0


def list_arrays(opened: OpenVersions) -> dict[str, Any] | None:
    """List the arrays on `main` with the periods they cover. Return None if the branch does not exist."""
    try:
        shown = opened.show("branch:main")
    except RequestError:
        return None
    session = opened.versions.session(shown.snapshot_id)
    found, derived = views.contents(session, _MAX_ARRAYS), set(list_derived(session))
    times = [each["path"] for each in found["coordinates"] if each["is_time"]]
    open_view = partial(opened.view, shown.snapshot_id)
    extents = get_pool("serve-extents", 4).map(
        lambda path: read_extent(open_view(path)), times[:_MAX_PERIODS]
    )
    periods = dict(zip(times, extents, strict=False))
    for each in (*found["data"], *found["coordinates"]):
        group = each["path"].rpartition("/")[0]
        of_dims = (periods.get(f"{group}/{dim}") for dim in each["dims"])
        each["is_derived"] = each["path"] in derived
        each["period"] = next((period for period in of_dims if period), [])
    return found


def read_extent(view: ArrayView) -> list[str]:
    """Return the first and last value of a coordinate as text; empty if it cannot be read."""
    size = view.shape[0]
    try:
        ends = [view.texts(view.read((slice(at, at + 1, 1),)))[0] for at in (0, size - 1) if size]
    except (RequestError, IcechunkError):
        return []
    return [*dict.fromkeys(ends)]
