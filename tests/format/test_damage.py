"""Damaged files: truncated, of the wrong type, inflated, with flipped bits. Always FormatError or a valid
value.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.encoding.envelope import HEADER, MAGIC, PLAUSIBLE_BYTES, FileType, Header, open_payload, seal
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.config_flexbuffers import decode_config
from icefloe.format.config_yaml import decode_config_yaml
from icefloe.format.refs_v1 import decode_ref
from icefloe.format.repo_info import RepoInfo
from icefloe.format.spec import V1, V2
from tests.support.format import golden, strategies
from tests.support.format.damaged_files import Sample, golden_sample, outcome, read, refused, samples, written

# Flipped bits of each payload; `make torture` flips more.
FLIPS = int(os.environ.get("ICEFLOE_FLIPS", "400"))
OLD = (*samples("v1-0.2.0-basic", 150), *samples("v1-1.1.21-virtual", 200))
NEW = (*samples("v2-2.0.0-virtual_compressed", 200), *samples("v2-2.3.0-v2ops", 200))
FOREIGN = samples("foreign-v2-2", 10)
TINY = (
    *samples("v1-0.2.0-basic", 150),
    *samples("v2-2.3.0-v2ops", 150)[1:3],
    *samples("foreign-v2-0", 10)[2:],
)


def rewritten(sample: Sample) -> Sample:
    """Return the same value in a file of ours, with a checksum."""
    return replace(sample, name=f"ours:{sample.name}", data=written(read(sample), sample.spec))


OURS = tuple(rewritten(sample) for sample in (*OLD, *NEW))
ALL = (*OLD, *NEW, *FOREIGN, *OURS)


def names(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", ALL, ids=names)
def test_undamaged_files_are_read(sample: Sample) -> None:
    assert not isinstance(outcome(sample), FormatError)


@pytest.mark.parametrize("sample", ALL, ids=names)
def test_truncated_file_is_rejected(sample: Sample) -> None:
    for end in range(len(sample.data)):
        refused(sample.with_data(sample.data[:end]))


@pytest.mark.parametrize("sample", ALL, ids=names)
@pytest.mark.parametrize("tail", [b"\0", b"\0" * 9, b"\x28\xb5\x2f\xfd", b"junk behind the frame"])
def test_bytes_after_the_frame_are_rejected(sample: Sample, tail: bytes) -> None:
    refused(sample.with_data(sample.data + tail))


@pytest.mark.parametrize("sample", ALL, ids=names)
def test_truncated_payload_is_rejected_or_valid(sample: Sample) -> None:
    payload = sample.payload

    for end in range(0, len(payload), max(1, len(payload) // 60)):
        outcome(sample.with_payload(payload[:end]))


@pytest.mark.parametrize("sample", OURS, ids=names)
def test_flipped_bit_in_our_frame_is_detected_or_harmless(sample: Sample) -> None:
    payload = sample.payload
    # zstd has unused bits, and several encodings of the same content.
    for bit in range(8 * HEADER.size, 8 * len(sample.data)):
        flipped = bytearray(sample.data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            same = bytes(open_payload(bytes(flipped), sample.place)) == payload
        except FormatError as error:
            same = error.message.startswith(sample.place)
        assert same, f"bit {bit}"


@pytest.mark.parametrize("sample", [*OLD[:3], *NEW[5:7]], ids=names)
def test_flipped_bit_in_an_official_frame_is_rejected_or_valid(sample: Sample) -> None:
    for at in range(HEADER.size, len(sample.data)):
        flipped = bytearray(sample.data)
        flipped[at] ^= 1 << at % 8
        outcome(sample.with_data(bytes(flipped)))


@pytest.mark.parametrize("sample", ALL[::3], ids=names)
def test_invalid_header_is_rejected(sample: Sample) -> None:
    def with_byte(at: int, value: int) -> FormatError:
        data = bytearray(sample.data)
        data[at] = value
        return refused(sample.with_data(bytes(data)))

    for at in range(len(MAGIC)):
        assert with_byte(at, sample.data[at] ^ 1).kind == ErrorKind.INVALID_FILE_FORMAT
    for version in (0, 3, 4, 255):
        assert with_byte(36, version).kind == ErrorKind.UNSUPPORTED_SPEC_VERSION
    for file_type in {*range(8), 255} - {sample.file_type}:
        assert "type" in with_byte(37, file_type).message
    for compression in (0, 2, 255):
        assert "compression" in with_byte(38, compression).message


def test_arbitrary_writer_name_is_accepted() -> None:
    sample = OURS[0]

    for name in (b"\xff" * 24, b"\0" * 24, b"x" * 24):
        data = sample.data[:12] + name + sample.data[36:]
        assert not isinstance(outcome(sample.with_data(data)), FormatError)


def test_repo_info_file_of_version_1_is_rejected() -> None:
    sample = golden_sample("v2-2.3.0-basic", "repo")
    data = bytearray(sample.data)
    data[36] = V1.number

    assert "version 1" in refused(sample.with_data(bytes(data))).message


@pytest.mark.parametrize("sample", [s for s in ALL if s.file_type is not FileType.REPO_INFO], ids=names)
def test_file_stored_under_another_id_is_rejected(sample: Sample) -> None:
    other = type(sample.id)(b"x" * 12)

    assert str(sample.id) in refused(replace(sample, id=other)).message


@pytest.mark.parametrize("sample", TINY, ids=names)
def test_any_flipped_bit_of_a_small_payload_is_rejected_or_valid(sample: Sample) -> None:
    payload = sample.payload
    step = max(1, len(payload) * 8 // FLIPS)

    for bit in range(0, len(payload) * 8, step):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        outcome(sample.with_payload(bytes(flipped)))


@pytest.mark.parametrize("value", [0x00, 0xFF, 0x80])
@pytest.mark.parametrize("sample", [*OLD, *NEW, *FOREIGN], ids=names)
def test_any_byte_of_a_payload_is_rejected_or_valid(sample: Sample, value: int) -> None:
    payload = sample.payload

    for at in range(0, len(payload), max(1, len(payload) // 30)):
        changed = bytearray(payload)
        changed[at] = value
        outcome(sample.with_payload(bytes(changed)))


@settings(max_examples=100, derandomize=True)
@given(st.data())
def test_random_mutations_are_rejected_or_valid(data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from([*OLD, *NEW, *FOREIGN]))
    payload = bytearray(sample.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(payload) - 4)))
        number = data.draw(
            st.sampled_from([0, 1, 4, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000]) | st.integers(0, 300)
        )
        if data.draw(st.booleans()):
            payload[at : at + 4] = struct.pack("<I", number)
        else:
            payload[at : at + 2] = struct.pack("<H", number & 0xFFFF)
    if data.draw(st.booleans()):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(payload))] * 2)))
        payload[start:stop] = b""

    outcome(sample.with_payload(bytes(payload)))


@settings(max_examples=100, derandomize=True)
@given(st.sampled_from(FileType), st.sampled_from([V1, V2]), st.binary(max_size=200))
def test_random_payloads_are_rejected(file_type: FileType, spec: object, payload: bytes) -> None:
    number = V2.number if file_type is FileType.REPO_INFO else getattr(spec, "number", 2)
    id = ManifestId(bytes(12)) if file_type is FileType.MANIFEST else SnapshotId(bytes(12))
    data = seal(np.frombuffer(payload, np.uint8), Header("random", number, file_type))

    refused(Sample("random", file_type, id, data))


@given(st.sampled_from(FileType), st.binary(max_size=80))
def test_random_bytes_are_rejected(file_type: FileType, data: bytes) -> None:
    id = ManifestId(bytes(12)) if file_type is FileType.MANIFEST else SnapshotId(bytes(12))
    head = HEADER.pack(MAGIC, b"x" * 24, 2, file_type, 1)

    refused(Sample("random", file_type, id, data))
    refused(Sample("random", file_type, id, head + data))


def frame(payload: bytes, *, declared: bool) -> bytes:
    options = zstandard.ZstdCompressor(write_content_size=declared)
    if declared:
        return options.compress(payload)
    stream = options.compressobj()
    return stream.compress(payload) + stream.flush()


def sealed(frames: bytes, file_type: FileType) -> Sample:
    id = ManifestId(bytes(12)) if file_type is FileType.MANIFEST else SnapshotId(bytes(12))
    return Sample("bomb", file_type, id, HEADER.pack(MAGIC, b"bomb".ljust(24), 2, file_type, 1) + frames)


@pytest.mark.parametrize("file_type", FileType)
@pytest.mark.parametrize("size", [1 << 29, 1 << 31, 1 << 40, (1 << 64) - 3])
def test_frame_that_declares_too_much_is_rejected(file_type: FileType, size: int) -> None:
    # Frame_Content_Size of eight bytes behind the descriptor 0xe0, then a last raw block of no bytes.
    claim = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"

    error = refused(sealed(claim, file_type))

    assert error.kind == ErrorKind.INVALID_FILE_FORMAT


BOMB = """
import resource, sys
from icefloe.encoding.envelope import open_payload
from icefloe.errors import FormatError
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_payload(data, "bomb")
except FormatError as error:
    print(error.message)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="memory is measured by resource")
def test_stream_of_zeros_is_rejected_in_bounded_memory() -> None:
    zeros = frame(bytes(1 << 27), declared=False)
    bomb = HEADER.pack(MAGIC, b"bomb".ljust(24), 2, 2, 1) + zeros * 64

    result = subprocess.run([sys.executable, "-c", BOMB], input=bomb, capture_output=True, check=True)

    message, grown = result.stdout.decode().splitlines()
    assert len(bomb) < 1 << 20
    assert f"{PLAUSIBLE_BYTES}" in message
    assert int(grown) < 1500, "MiB"


def test_several_frames_without_size_are_one_payload() -> None:
    sample = OLD[0]
    payload = sample.payload
    frames = frame(payload[:50], declared=False) + frame(payload[50:], declared=False)

    assert bytes(open_payload(sample.data[:39] + frames, "x")) == payload
    refused(sample.with_data(sample.data[:39] + frame(payload[:50], declared=True) + frames))


REF = b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}'


@given(st.binary(max_size=60) | st.integers(0, len(REF) - 1).map(lambda end: REF[:end]))
def test_damaged_reference_is_rejected(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^refs/branch\.main/ref\.json: "):
        decode_ref(data, "refs/branch.main/ref.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"snapshot":"1CECHNKREP0F1RSTCMT"}',
        '{"snapshot":"1CECHNKREP0F1RSTCMTU"}',
        '{"snapshot":7}',
        '["snapshot"]',
        "[" * 100_000,
        "null",
    ],
)
def test_reference_without_snapshot_is_rejected(text: str) -> None:
    with pytest.raises(FormatError, match=r"^here: "):
        decode_ref(text.encode(), "here")


CONFIG = golden.load("v1-1.1.21-virtual").files["config.yaml"]


@given(st.data())
def test_damaged_config_file_is_rejected_or_a_mapping(data: st.DataObject) -> None:
    text = bytearray(CONFIG)
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))

    check_config(decode_config_yaml, bytes(text))


def check_config(decode: Callable[[bytes, str], Any], data: bytes) -> None:
    """Check that a decoder returns a mapping, or raises an error of the right kind with the file name."""
    try:
        found = decode(data, "place")
    except FormatError as error:
        found = {error.kind: error.message}
        if error.kind != ErrorKind.CONFIG_DESERIALIZATION or not error.message.startswith("place: "):
            raise
    assert isinstance(found, dict)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- 1",
        "a: &x [1]\nb: *x",
        "a: " + "[" * 5000,
        "a: " + "{b: " * 200 + "1" + "}" * 200,
        "a: !!python/object/apply:os.system [ls]",
        "a: !s3\n  <<: 1",
        "? [1, 2]\n: 3",
        "a: 2001-99-99",
        "a: 0x",
        "a: !!bool x",
        'a: !!int ""',
        'a: !!float ""',
        "a: !!timestamp x",
        "\x00",
        "%YAML 9.9\n---\na: 1",
    ],
)
def test_unusual_config_file_is_rejected_or_a_mapping(text: str) -> None:
    check_config(decode_config_yaml, text.encode())


@given(st.binary(max_size=40))
def test_config_bytes_are_rejected_or_a_mapping(data: bytes) -> None:
    check_config(decode_config, data)


@given(strategies.repo_infos(), st.data())
def test_mutated_repo_info_is_rejected_or_valid(info: RepoInfo, data: st.DataObject) -> None:
    sample = Sample("repo", FileType.REPO_INFO, SnapshotId(bytes(12)), written(info, V2))
    payload = bytearray(sample.payload)
    for _ in range(3):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] ^= data.draw(st.integers(1, 255))

    outcome(sample.with_payload(bytes(payload)))
