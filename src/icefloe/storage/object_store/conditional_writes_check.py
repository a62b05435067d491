"""Check, once per location and process, that a server rejects writes whose condition does not hold.

Some S3-compatible servers accept conditions but ignore them. `probe` examines a storage thoroughly. This
module makes only the check that is needed before the first commit: that a write is rejected if its condition
does not hold.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

from icefloe.config import EffectiveStorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import ABSENT, Storage, Unchanged, accepts

_logger = logging.getLogger(__name__)
_trusted: set[tuple[str, bool, bool]] = set()


def require_conditions(storage: Storage, place: str) -> None:
    """Raise StorageError if the object store ignores write conditions. The test runs once per location and
    process.

    The check uses a separate object, which is deleted afterwards. If the settings disable conditions, they
    are not checked, and a warning is logged: a user who disables them guarantees that there is only one
    writer.
    """
    settings = storage.settings
    wanted = (place, settings.use_conditional_create, settings.use_conditional_update)
    if wanted in _trusted:
        return
    _warn_of_unsafe_settings(settings, place)
    if settings.use_conditional_create or settings.use_conditional_update:
        _try(storage, settings, place)
    _trusted.add(wanted)


def _try(storage: Storage, settings: EffectiveStorageSettings, place: str) -> None:
    path = f"icefloe-probe-{uuid.uuid4().hex}/conditions"
    written = storage.put(path, b"first")
    # An etag of the same form, so that the server does not reject it as malformed.
    other = replace(written, e_tag=f'"{uuid.uuid4().hex}"')
    try:
        if settings.use_conditional_create and accepts(storage, path, b"second", ABSENT):
            raise _warn_ignored(place, "overwrites existing objects in spite of If-None-Match", "create")
        if settings.use_conditional_update and accepts(storage, path, b"second", Unchanged(other)):
            raise _warn_ignored(place, "overwrites changed objects in spite of If-Match", "update")
    finally:
        storage.delete([path])


def _warn_ignored(place: str, what: str, flag: str) -> StorageError:
    return StorageError(
        f"the server of {place} {what}, so commits of concurrent writers would be lost; use a server that "
        f"supports conditional writes or, if there is never more than one writer, "
        f"StorageSettings(unsafe_use_conditional_{flag}=False)",
        kind=ErrorKind.STORAGE_CONFIG,
    )


def _warn_of_unsafe_settings(settings: EffectiveStorageSettings, place: str) -> None:
    flags = {"create": settings.use_conditional_create, "update": settings.use_conditional_update}
    off = [f"unsafe_use_conditional_{name}" for name, on in flags.items() if not on]
    if off:
        _logger.warning(
            "%s is off for %s: commits of concurrent writers can be lost", " and ".join(off), place
        )
