"""Decode GRIB files of ecCodes through references."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import pytest

from icefloe.virtual import CannotVirtualizeError, RefusalReason, combine, virtualize
from icefloe.virtual.codecs import GribCodec
from icefloe.virtual.decoders.grib import split_fields
from icefloe.virtual.values import open_values
from tests.support.servers.ranges import range_server
from tests.support.virtual.files import aged, assert_all_read_back, assert_reads_back

ROWS, COLUMNS = 31, 16


def message(sample: str, values: Any = None, **keys: Any) -> bytes:
    """Create a message on a grid of 31 by 16 points from a sample of ecCodes."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    if values is not None:
        eccodes.codes_set_values(handle, values.reshape(-1))
    data: bytes = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return data


def field(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 12, (ROWS, COLUMNS)).astype("f8")


@pytest.mark.parametrize("sample", ["regular_ll_pl_grib1", "regular_ll_pl_grib2"])
def test_messages_become_variables_along_time_step_and_level(tmp_path: Path, sample: str) -> None:
    expected = np.empty((2, 2, 2, ROWS, COLUMNS), "f4")
    parts: list[bytes] = []
    for t, date in enumerate((20200101, 20200102)):
        for s, step in enumerate((6, 12)):
            for n, level in enumerate((850, 500)):
                values = field(100 * t + 10 * s + n)
                expected[t, s, n] = values
                keys = {
                    "dataDate": date,
                    "dataTime": 0,
                    "endStep": step,
                    "level": level,
                    "shortName": "t",
                    "bitsPerValue": 16,
                }
                parts.append(message(sample, values, **keys))
    (tmp_path / "f.grib").write_bytes(b"text in front" + b"\0".join(parts))

    dataset = pickle.loads(pickle.dumps(virtualize(aged(tmp_path / "f.grib"))))

    variable = dataset.variables["t"]
    assert variable.dimensions == ("time", "step", "isobaricInhPa", "latitude", "longitude")
    assert variable.attributes["units"] == "K"
    assert dataset.variables["isobaricInhPa"].values.tolist() == [850, 500]
    assert dataset.variables["step"].values.tolist() == [6, 12]
    assert dataset.variables["latitude"].values[:2].tolist() == [60, 58]
    assert_reads_back(dataset, "t", expected)
    opened = dataset.to_xarray()
    assert opened["valid_time"].values[1, 1] == np.datetime64("2020-01-02T12")


def test_only_headers_of_large_remote_messages_are_fetched() -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (1000, 1000)).astype("f8")
    keys = {"Ni": 1000, "Nj": 1000, "shortName": "t", "bitsPerValue": 16}
    messages = [
        message("regular_ll_pl_grib2", values + level, **keys, level=level) for level in (1000, 850, 500)
    ]
    with range_server() as server:
        server.files["f.grib2"] = b"".join(messages)

        dataset = virtualize(f"{server.url}/f.grib2")

        fetched = sum(stop - start for _, start, stop in server.asked)
        assert fetched < len(server.files["f.grib2"]) / 3
        assert len(server.asked) < 15
        found = open_values(dataset, ["t"])["t"]
    np.testing.assert_array_equal(found[1], (values + 850).astype("f4"))


def test_variables_with_different_coordinates_become_groups(tmp_path: Path) -> None:
    sample = "regular_ll_pl_grib2"
    first, second, third = field(1), field(2), field(3)
    (tmp_path / "f.grib").write_bytes(
        message(sample, first, shortName="t", level=500, bitsPerValue=16)
        + message(sample, second, shortName="t", level=500, bitsPerValue=16)
        + message(sample, third, shortName="2t", bitsPerValue=16)
    )

    dataset = virtualize(aged(tmp_path / "f.grib"))

    groups = ["isobaricInhPa", "isobaricInhPa_2", "heightAboveGround"]
    assert list(dataset.groups) == groups
    values = {f"{groups[0]}/t": first, f"{groups[1]}/t": second, f"{groups[2]}/t2m": third}
    assert_all_read_back(dataset, {path: each.astype("f4") for path, each in values.items()})
    assert "t2m" in virtualize(tmp_path / "f.grib", group="heightAboveGround").variables


def test_missing_values_are_nan_and_9999_is_a_value(tmp_path: Path) -> None:
    values = np.full((ROWS, COLUMNS), 9999.0)
    values[0, 0], values[1, 1] = 1e20, 1.0
    data = message(
        "regular_ll_pl_grib2", values, bitmapPresent=1, missingValue=1e20, bitsPerValue=24, shortName="t"
    )
    (tmp_path / "f.grib").write_bytes(data)

    expected = values.astype("f4")
    expected[0, 0] = np.nan
    assert_reads_back(virtualize(aged(tmp_path / "f.grib")), "t", expected)


@pytest.mark.parametrize(
    "scanning", [{"jScansPositively": 1}, {"jPointsAreConsecutive": 1}, {"alternativeRowScanning": 1}]
)
def test_every_grib_scanning_mode_yields_rows_of_longitudes(tmp_path: Path, scanning: dict[str, int]) -> None:
    data = message("regular_ll_pl_grib2", shortName="t", bitsPerValue=24)
    handle = eccodes.codes_new_from_message(data)
    if "jScansPositively" in scanning:
        eccodes.codes_set(handle, "latitudeOfFirstGridPointInDegrees", 30)
        eccodes.codes_set(handle, "latitudeOfLastGridPointInDegrees", 60)
    for key, value in scanning.items():
        eccodes.codes_set(handle, key, value)
    latitudes = eccodes.codes_get_array(handle, "latitudes")
    longitudes = eccodes.codes_get_array(handle, "longitudes")
    values = latitudes * 1000 + longitudes
    if "alternativeRowScanning" in scanning:
        grid = values.reshape(ROWS, COLUMNS)
        grid[1::2] = grid[1::2, ::-1]
    eccodes.codes_set_values(handle, values)
    (tmp_path / "f.grib").write_bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)

    dataset = virtualize(aged(tmp_path / "f.grib"))

    opened = dataset.to_xarray()
    by_place = opened["latitude"] * 1000 + opened["longitude"]
    assert opened["t"].dims == ("latitude", "longitude")
    np.testing.assert_allclose(opened["t"].values, by_place.values, rtol=1e-5)


def test_unstructured_grid_has_one_dimension(tmp_path: Path) -> None:
    data = message("reduced_gg_pl_32_grib2")
    (tmp_path / "f.grib").write_bytes(data)
    handle = eccodes.codes_new_from_message(data)
    latitudes = eccodes.codes_get_array(handle, "latitudes")
    values = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)

    dataset = virtualize(aged(tmp_path / "f.grib"))

    (name,) = set(dataset.variables) & {"t", "z", "u"}
    assert dataset.variables[name].dimensions == ("values",)
    assert_all_read_back(dataset, {name: values.astype("f4"), "latitude": latitudes})


def test_spherical_harmonics_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "f.grib").write_bytes(message("sh_pl_grib2", shortName="t"))

    (refused,) = virtualize(aged(tmp_path / "f.grib")).refused

    assert (refused.variable, refused.reason) == ("t", RefusalReason.UNSUPPORTED_GRID)
    assert "spherical harmonics" in refused.sentence


def test_fields_of_one_message_are_separate_variables(tmp_path: Path) -> None:
    one = message("regular_ll_pl_grib2", field(1), shortName="u", bitsPerValue=16)
    two = message("regular_ll_pl_grib2", field(2), shortName="v", bitsPerValue=16)
    sections = b"".join(part for part in _sections(two) if part[4] >= 4)
    body = one[16:-4] + sections
    both = one[:8] + (len(body) + 20).to_bytes(8) + body + b"7777"
    (tmp_path / "f.grib").write_bytes(both)

    dataset = virtualize(aged(tmp_path / "f.grib"))

    assert len(split_fields(both)) == 2
    assert_all_read_back(dataset, {"u": field(1).astype("f4"), "v": field(2).astype("f4")})


def _sections(data: bytes) -> list[bytes]:
    found, position = [], 16
    while data[position : position + 4] != b"7777":
        length = int.from_bytes(data[position : position + 4])
        found.append(data[position : position + length])
        position += length
    return found


def test_files_with_single_times_are_combined(tmp_path: Path) -> None:
    parts = []
    for day in range(3):
        path = tmp_path / f"{day}.grib"
        keys = {"dataDate": 20200101 + day, "shortName": "t", "bitsPerValue": 16}
        path.write_bytes(message("regular_ll_pl_grib2", field(day), **keys))
        parts.append(virtualize(aged(path)))

    variables = ["t", "time", "valid_time"]
    dataset = combine([part.expand_dims("time", variables=variables) for part in parts], "time")

    assert_reads_back(dataset, "t", np.stack([field(day) for day in range(3)]).astype("f4"))
    assert np.diff(dataset.variables["time"].values).tolist() == [86400, 86400]


@pytest.mark.parametrize("cut", [20, 3])
def test_truncated_file_is_rejected(tmp_path: Path, cut: int) -> None:
    (tmp_path / "f.grib").write_bytes(message("regular_ll_pl_grib1")[:-cut])

    with pytest.raises(CannotVirtualizeError, match=r"f\.grib: the GRIB message at byte 0 .* truncated"):
        virtualize(aged(tmp_path / "f.grib"))


def test_codec_is_picklable_and_decodes_only() -> None:
    codec = GribCodec(key="latitudes", field=1)

    assert pickle.loads(pickle.dumps(codec)) == codec
    assert GribCodec.from_dict(codec.to_dict()) == codec
