"""config.yaml is YAML 1.2, as official releases write and read it."""

from __future__ import annotations

import pytest

from icefloe.format.config_yaml import decode_config_yaml, encode_config_yaml

TEXTS = [
    *("=", "<<", "2020-01-01", "12:30:45", "1:30", "1_000", "yes", "no", "on", "off"),
    *(".5_0", "0x_1", "685_230.15", "190:20:30.15", "~x"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_values_of_older_yaml_versions_are_text(text: str) -> None:
    data = f"a: {text}\nb: !name_matches\n  regex: {text}\nc: !DimensionName {text}\n".encode()

    config = decode_config_yaml(data, "config.yaml")

    assert config == {"a": text, "b": {"name_matches": {"regex": text}}, "c": {"DimensionName": text}}


@pytest.mark.parametrize(
    "text", [*TEXTS, "0", "010", "1e3", "true", "null", "", "~", "\x85", "\u2028x", "a: b", "#"]
)
def test_every_text_round_trips(text: str) -> None:
    config = {
        "x": text,
        "y": {"name_matches": {"regex": text}},
        "z": [{"condition": {"DimensionName": text}}],
    }

    assert decode_config_yaml(encode_config_yaml(config), "config.yaml") == config


def test_types_of_the_core_schema_are_recognized() -> None:
    data = b"a: 5\nb: -3\nc: 1.5\nd: true\ne: null\nf:\ng: ~\nh: 0x1f\ni: 0o17\nj: '5'\nk: 1e3\nl: .inf\n"

    config = decode_config_yaml(data, "config.yaml")

    expected = {"a": 5, "b": -3, "c": 1.5, "d": True, "e": None, "f": None, "g": None, "h": 31, "i": 15}
    assert config == expected | {"j": "5", "k": 1000.0, "l": float("inf")}
