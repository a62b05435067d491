"""Check that the codecs of GRIB, TIFF and HDF5 files can decode, and reject encoding."""

from __future__ import annotations

import pytest
import zarr
from zarr.storage import MemoryStore

from icefloe.virtual.codecs import GribCodec


def test_decode_only_codec_rejects_writes() -> None:
    store = MemoryStore()
    array = zarr.create_array(store, shape=(2, 3), chunks=(2, 3), dtype="f4", serializer=GribCodec())

    with pytest.raises(NotImplementedError, match="can only decode; create an array with other codecs"):
        array[...] = 1

    with pytest.raises(NotImplementedError, match="encoded sizes are unknown"):
        GribCodec().compute_encoded_size(24, array.metadata)
    assert [key for key in store._store_dict if "c/" in key] == []
