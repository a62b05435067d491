"""Small GRIB files for tests, made from ecCodes' samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eccodes
import numpy as np

from tests.support.ingest.files import aged

ROWS, COLUMNS = 31, 16
SURFACE: dict[str, Any] = {"typeOfLevel": "surface", "level": 0}
PRESSURE: dict[str, Any] = {"typeOfLevel": "isobaricInhPa"}


def field(*, step: int = 0, seed: int = 0, date: int = 20240101, **keys: Any) -> bytes:
    """Return a message on a grid of 31 by 16 points. Those of accumulated fields begin at step 0."""
    accumulated = keys.get("shortName") in ("tp", "ssrd", "sf")
    sample = "regular_ll_sfc_grib2" if keys["typeOfLevel"] == "surface" else "regular_ll_pl_grib2"
    handle = eccodes.codes_grib_new_from_samples(sample)
    if accumulated:
        eccodes.codes_set(handle, "productDefinitionTemplateNumber", 8)
    eccodes.codes_set(handle, "dataDate", date)
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    if accumulated:
        eccodes.codes_set(handle, "stepRange", f"0-{step}")
    else:
        eccodes.codes_set(handle, "step", step)
    mark = sum(map(ord, str(sorted(keys.items())))) + 1000 * step + seed + date % 100 * 7
    values = np.random.default_rng(mark).integers(0, 1 << 12, ROWS * COLUMNS).astype("f8")
    eccodes.codes_set(handle, "bitsPerValue", 16)
    eccodes.codes_set_values(handle, values)
    data: bytes = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return data


def write_grib(path: Path, *messages: bytes) -> str:
    """Write messages to a file; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(messages))
    return str(aged(path))


def surface(name: str, **keys: Any) -> bytes:
    """Return a field at the surface."""
    return field(shortName=name, **SURFACE, **keys)


def pressure(name: str, level: int, **keys: Any) -> bytes:
    """Return a field on a pressure level."""
    return field(shortName=name, level=level, **PRESSURE, **keys)


def height(name: str, **keys: Any) -> bytes:
    """Return a field above the ground. ecCodes knows the height of 2t and 10u."""
    return field(typeOfLevel="heightAboveGround", shortName=name, **keys)
