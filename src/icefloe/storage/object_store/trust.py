"""Conditional writes are trusted where a server was seen to refuse one, once for each place and process.

Some servers that speak S3 take the conditions of a write and ignore them. `probe` tells all about a place;
this is the little of it that can be asked before the first commit: is a write refused that must be?
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
    """Raise StorageError if the server behind `storage` ignores the conditions of writes.

    Tried on an object of its own, which is deleted again. What the settings switch off is not tried, only
    warned about: whoever sets them says that there is one writer.
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
    # An etag of the same form, so that no server refuses it for its looks.
    other = replace(written, e_tag=f'"{uuid.uuid4().hex}"')
    try:
        if settings.use_conditional_create and accepts(storage, path, b"second", ABSENT):
            raise _ignored(place, "overwrites objects on a write that asks for there being none", "create")
        if settings.use_conditional_update and accepts(storage, path, b"second", Unchanged(other)):
            raise _ignored(place, "overwrites changed objects on a write that asks for no change", "update")
    finally:
        storage.delete([path])


def _ignored(place: str, what: str, flag: str) -> StorageError:
    return StorageError(
        f"the server of {place} {what}: commits of two writers would be lost. Use a server that keeps "
        f"conditions, or, where there is never more than one writer, the setting "
        f"StorageSettings(unsafe_use_conditional_{flag}=False)",
        kind=ErrorKind.STORAGE_CONFIG,
    )


def _warn_of_unsafe_settings(settings: EffectiveStorageSettings, place: str) -> None:
    flags = {"create": settings.use_conditional_create, "update": settings.use_conditional_update}
    off = [f"unsafe_use_conditional_{name}" for name, on in flags.items() if not on]
    if off:
        _logger.warning("%s off at %s: commits of two writers can be lost", " and ".join(off), place)
