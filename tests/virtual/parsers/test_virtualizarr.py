"""Parse FITS, HDF4 and DMR++ with VirtualiZarr, and compare with the libraries of these formats."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from icefloe.virtual import CannotVirtualizeError, VirtualDataset, virtualize
from tests.support.virtual.files import aged, assert_reads_back

RELEASE = tuple(map(int, version("virtualizarr").split(".")[:3]))
VALUES = np.arange(24, dtype="f4").reshape(4, 6)


def dmrpp(folder: Path) -> Path:
    with h5py.File(folder / "f.nc", "w") as file:
        stored = file.create_dataset("t", data=VALUES, chunks=(2, 6))
        chunks = [stored.id.get_chunk_info(number) for number in range(2)]
    aged(folder / "f.nc")
    listed = "".join(
        f'<dmrpp:chunk offset="{each.byte_offset}" nBytes="{each.size}" '
        f'chunkPositionInArray="[{",".join(map(str, each.chunk_offset))}]"/>'
        for each in chunks
    )
    (folder / "f.nc.dmrpp").write_text(
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n'
        '<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" '
        'xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" name="f.nc">'
        '<Dimension name="y" size="4"/><Dimension name="x" size="6"/>'
        '<Float32 name="t"><Dim name="/y"/><Dim name="/x"/>'
        '<Attribute name="units" type="String"><Value>K</Value></Attribute>'
        '<dmrpp:chunks fillValue="0" byteOrder="LE">'
        f"<dmrpp:chunkDimensionSizes>2 6</dmrpp:chunkDimensionSizes>{listed}</dmrpp:chunks>"
        "</Float32></Dataset>"
    )
    return aged(folder / "f.nc.dmrpp")


def test_dmrpp_references_point_to_described_file(tmp_path: Path) -> None:
    dataset = virtualize(dmrpp(tmp_path))

    assert [each.location for each in dataset.sources] == [(tmp_path / "f.nc").as_uri()]
    assert dataset.sources[0].checksum is not None
    assert dataset.variables["t"].dimensions == ("y", "x")
    assert dataset.variables["t"].attributes["units"] == "K"
    assert_reads_back(dataset, "t", VALUES)


def test_groups_of_dmrpp_are_parsed(tmp_path: Path) -> None:
    path = dmrpp(tmp_path)
    text = path.read_text()
    start, stop = text.index("<Float32"), text.index("</Dataset>")
    below = f'<Group name="air"><Group name="surface">{text[start:stop]}</Group></Group>'
    path.write_text(text[:start] + below + text[stop:])

    dataset = virtualize(aged(path))

    assert {name: list(group.variables) for name, group in dataset.walk()} == {
        "": [],
        "air": [],
        "air/surface": ["t"],
    }
    assert [each.location for each in dataset.sources] == [f"file://{tmp_path}/f.nc"]
    assert_reads_back(dataset.groups["air"].groups["surface"], "t", VALUES)


def test_damaged_dmrpp_is_rejected(tmp_path: Path) -> None:
    path = dmrpp(tmp_path)
    path.write_text(path.read_text()[:-20])

    with pytest.raises(CannotVirtualizeError, match=r"f\.nc\.dmrpp cannot be read as DMR\+\+: ParseError"):
        virtualize(aged(path))


def images(folder: Path) -> Path:
    from astropy.io import fits

    scaled = fits.ImageHDU(VALUES.astype("i2"), name="SCALED")
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=[1, 2])], name="TABLE")
    found = fits.HDUList([fits.PrimaryHDU(VALUES), scaled, table])
    found["SCALED"].header["BSCALE"] = 0.5
    found["SCALED"].header["BZERO"] = 10.0
    found.writeto(folder / "f.fits")
    return aged(folder / "f.fits")


def hdf4(folder: Path) -> Path:
    from pyhdf.SD import SD, SDC

    file = SD(str(folder / "f.hdf"), SDC.WRITE | SDC.CREATE | SDC.TRUNC)
    for name, kind in (("t", SDC.FLOAT32), ("n", SDC.INT16)):
        variable = file.create(name, kind, VALUES.shape)
        variable.setcompress(SDC.COMP_DEFLATE, 5)
        variable[:] = VALUES.astype("f4" if name == "t" else "i2")
        variable.endaccess()
    file.end()
    return aged(folder / "f.hdf")


def read(dataset: VirtualDataset, name: str) -> Any:
    return dataset.to_xarray(decode_cf=False)[name].values


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.skipif(RELEASE < (2, 8), reason="VirtualiZarr 2.8 is the first whose FITS parser is right")
def test_fits_images_are_parsed_and_tables_refused(tmp_path: Path) -> None:
    dataset = virtualize(images(tmp_path))

    np.testing.assert_array_equal(read(dataset, "PRIMARY"), VALUES)
    np.testing.assert_array_equal(read(dataset, "SCALED"), VALUES * 0.5 + 10)
    assert [each.variable for each in dataset.refused] == ["TABLE"]
    assert "skip_variables" not in dataset.refused[0].sentence


@pytest.mark.skipif(RELEASE < (2, 8), reason="VirtualiZarr 2.8 is the first whose FITS parser is right")
def test_fits_images_that_would_be_read_wrongly_are_refused(tmp_path: Path) -> None:
    """VirtualiZarr would take compressed tiles for values, and would round large integers."""
    from astropy.io import fits

    integers = VALUES.astype("i2")
    large = fits.ImageHDU(VALUES.astype("u8") + 2**60, name="LARGE")
    packed = [fits.CompImageHDU(integers, name=name) for name in ("PLAIN", "PACKED")]
    plain = fits.ImageHDU(integers, name="PLAIN")
    fits.HDUList([fits.PrimaryHDU(), plain, *packed, large]).writeto(tmp_path / "f.fits")

    dataset = virtualize(aged(tmp_path / "f.fits"))

    assert [each.variable for each in dataset.refused] == ["PLAIN_2", "PACKED", "LARGE"]
    np.testing.assert_array_equal(read(dataset, "PLAIN"), integers)


@pytest.mark.filterwarnings("ignore:File may have been truncated")
@pytest.mark.skipif(RELEASE < (2, 8), reason="VirtualiZarr 2.8 is the first whose FITS parser is right")
def test_truncated_fits_is_rejected(tmp_path: Path) -> None:
    path = images(tmp_path)
    path.write_bytes(path.read_bytes()[:2900])

    with pytest.raises(
        CannotVirtualizeError, match="is truncated: PRIMARY ends at byte 2976 of a file of 2900"
    ):
        virtualize(aged(path))


@pytest.mark.skipif(RELEASE < (2, 7, 1), reason="VirtualiZarr 2.7.1 is the first with a parser for HDF4")
def test_hdf4_with_another_compression_is_refused(tmp_path: Path) -> None:
    """kerchunk takes every compression for deflate."""
    from pyhdf.SD import SD, SDC

    file = SD(str(tmp_path / "f.hdf"), SDC.WRITE | SDC.CREATE | SDC.TRUNC)
    variable = file.create("t", SDC.FLOAT32, VALUES.shape)
    variable.setcompress(SDC.COMP_RLE)
    variable[:] = VALUES
    variable.endaccess()
    file.end()

    dataset = virtualize(aged(tmp_path / "f.hdf"))

    assert [each.sentence for each in dataset.refused] == [
        "t: its chunks are not deflated; convert the file to NetCDF"
    ]


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.skipif(RELEASE < (2, 7, 1), reason="VirtualiZarr 2.7.1 is the first with a parser for HDF4")
def test_hdf4_numbers_are_big_endian(tmp_path: Path) -> None:
    dataset = virtualize(hdf4(tmp_path))

    np.testing.assert_array_equal(read(dataset, "t"), VALUES)
    np.testing.assert_array_equal(read(dataset, "n"), VALUES)


@pytest.mark.parametrize(
    ("head", "title", "since"), [(b"SIMPLE  =   T", "FITS", "2.8"), (b"\x0e\x03\x13\x01", "HDF4", "2.7.1")]
)
def test_outdated_virtualizarr_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, title: str, since: str
) -> None:
    monkeypatch.setattr("icefloe.virtual.parsers.virtualizarr._get_installed", lambda: "2.5.1")
    (tmp_path / "f").write_bytes(head.ljust(2880))

    with pytest.raises(
        CannotVirtualizeError, match=rf"is {title}, which requires VirtualiZarr {since} or newer, and 2\.5\.1"
    ):
        virtualize(aged(tmp_path / "f"))
