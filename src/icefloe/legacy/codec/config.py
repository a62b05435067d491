"""Convert the `config.yaml` of old formats to the current configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from icefloe.config import RepositoryConfig, VirtualChunkContainer
from icefloe.errors import IcechunkError
from icefloe.format.config_flexbuffers import CONTAINERS
from icefloe.legacy.codec.structures import LegacyFindings

_OBSOLETE: Final = frozenset({"unsafe_overwrite_refs", "caching"})
"""Settings that no longer have a meaning. Cache sizes used to have different units."""
_KEPT: Final = ("inline_chunk_threshold_bytes", "get_partial_values_concurrency", "storage", "manifest")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def read_config(data: bytes, place: str, findings: LegacyFindings) -> dict[str, Any]:
    """Convert the settings of a legacy `config.yaml` that still have a meaning. All other settings are
    reported.
    """
    from icefloe.format.config_yaml import decode_config_yaml  # PyYAML is slow to import

    stored = decode_config_yaml(data, place)
    found: dict[str, Any] = {name: stored[name] for name in _KEPT if stored.get(name) is not None}
    if isinstance(stored.get("compression"), Mapping):
        found["compression"] = {**stored["compression"]}
        algorithm = found["compression"].get("algorithm")
        if isinstance(algorithm, str):
            found["compression"]["algorithm"] = algorithm.lower()
    containers = stored.get(CONTAINERS)
    if isinstance(containers, Mapping):
        found[CONTAINERS] = _containers(containers, place, findings)
    known = {*_KEPT, *_OBSOLETE, "compression", CONTAINERS}
    for name in sorted(str(name) for name in stored if name not in known):
        findings.note(f"{place}: ignored the obsolete setting {name}")
    return {name: value for name, value in found.items() if _check_fits(name, value, place, findings)}


def _containers(stored: Mapping[str, Any], place: str, findings: LegacyFindings) -> dict[str, Any]:
    found = {}
    for name, entry in stored.items():
        try:
            if not isinstance(entry, Mapping):
                raise ValueError("not a map")
            plain = {"url_prefix": entry.get("url_prefix"), "store": _store(entry.get("store"))}
            container = VirtualChunkContainer.from_plain(plain)
            container.check()
        except (ValueError, TypeError, IcechunkError) as error:
            # Old repositories had containers for whole URL schemes. Now a container requires a host.
            if _is_empty_entry(entry):
                continue
            findings.note(f"{place}: ignored virtual chunk container {name}: {error}")
            continue
        found[container.url_prefix] = container.to_plain()
    return found


def _is_empty_entry(entry: Any) -> bool:
    """Return True if a virtual chunk container is defined only by a URL scheme."""
    store = entry.get("store") if isinstance(entry, Mapping) else entry
    return isinstance(store, Mapping) and not any(store.values()) and "/" not in str(entry.get("url_prefix"))


def _store(stored: Any) -> Any:
    """Convert an object store configuration to the current spelling."""
    if isinstance(stored, str):
        return _HUMP.sub("_", stored).lower()
    if isinstance(stored, Mapping) and len(stored) == 1:
        ((name, options),) = stored.items()
        return {_HUMP.sub("_", str(name)).lower(): {} if options == [] else options}
    return stored


def _check_fits(name: str, value: Any, place: str, findings: LegacyFindings) -> bool:
    try:
        RepositoryConfig.from_plain({name: value})
    except (ValueError, TypeError, IcechunkError) as error:
        findings.note(f"{place}: ignored {name}: {error}")
        return False
    return True
