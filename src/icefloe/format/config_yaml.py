"""The configuration of V1 repositories as YAML. See `config_flexbuffers` for its content."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.config_flexbuffers import CONTAINERS, require_mapping

CHOICES: Final = frozenset(
    [
        "local_file_system",
        "s3",
        "s3_compatible",
        "tigris",
        "gcs",
        "azure",
        "http",
        "and",
        "or",
        "path_matches",
        "name_matches",
        "num_refs",
        "Included",
        "Excluded",
        "Axis",
        "DimensionName",
    ]
)
"""The names of variants that carry a value."""

_MAX_DEPTH: Final = 64
_LINE_BREAKS: Final = ("\x85", "\u2028", "\u2029")
_TEXT: Final = "tag:yaml.org,2002:str"


def encode_config_yaml(config: dict[str, Any]) -> bytes:
    """Encode the configuration of a V1 repository as YAML, for `config.yaml`."""
    tagged = _tag_variants(config)
    text = yaml.dump(tagged, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    if any(mark in text for mark in _LINE_BREAKS):  # readers would treat it as a line break
        text = yaml.dump(tagged, Dumper=_Dumper, sort_keys=False, default_flow_style=False)
    return text.encode()


def decode_config_yaml(data: bytes, place: str) -> dict[str, Any]:
    """Decode the configuration of a V1 repository from the YAML in `config.yaml`."""
    try:
        config = yaml.load(data.decode(), _Loader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML does not check values with a tag: `!!bool x`, `!!int ""`, `!!timestamp x`.
        summary = " ".join(str(error).split())
        raise FormatError(
            f"{place}: invalid configuration: {summary}", kind=ErrorKind.CONFIG_DESERIALIZATION
        ) from None
    return require_mapping(config, place)


class _Tagged:
    """A variant and its value, written as a tagged YAML node."""

    def __init__(self, choice: str, value: Any) -> None:
        self.choice = choice
        self.value = value


def _tag_variants(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_tag_variants(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)) in CHOICES:
        ((choice, inner),) = value.items()
        return _Tagged(choice, _tag_variants(inner))
    # User-chosen names may match variant names.
    return {
        key: {name: _tag_variants(entry) for name, entry in inner.items()}
        if key == CONTAINERS and isinstance(inner, dict)
        else _tag_variants(inner)
        for key, inner in value.items()
    }


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes variants as tags."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def choose_scalar_style(self) -> Any:
        # By default tagged values are quoted, and readers would not take `!Axis '0'` for a number.
        event: Any = self.event
        if str(event.tag).startswith("!") and event.style is None:
            self.analysis = self.analyze_scalar(event.value)
            if self.analysis.allow_block_plain:
                return ""
        return super().choose_scalar_style()


def _represent(dumper: yaml.SafeDumper, tagged: _Tagged) -> yaml.Node:
    tag, value = f"!{tagged.choice}", tagged.value
    if isinstance(value, dict):
        return dumper.represent_mapping(tag, value)
    if isinstance(value, list):
        return dumper.represent_sequence(tag, value)
    plain = dumper.represent_data(value)
    reads_as_text = _resolve_type(dumper, plain.value) == _TEXT
    return dumper.represent_scalar(
        tag, plain.value, style="'" if isinstance(value, str) and not reads_as_text else None
    )


_Dumper.add_representer(_Tagged, _represent)


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads tags as variants and rejects aliases, which can expand exponentially.

    Official writers do not quote values that YAML 1.2 treats as text, such as `on`, `1:30` or a date, so only
    the types of its core schema are recognized in unquoted text.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - required by PyYAML
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {_MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _construct(loader: yaml.SafeLoader, choice: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {choice: loader.construct_mapping(node, deep=True)}
    if isinstance(node, yaml.SequenceNode):
        return {choice: loader.construct_sequence(node, deep=True)}
    quoted = getattr(node, "style", None) is not None
    plain = yaml.ScalarNode(_TEXT if quoted else _resolve_type(loader, node.value), node.value)
    return {choice: loader.construct_object(plain)}


def _resolve_type(resolver: Any, text: str) -> str:
    """Return the YAML type that an unquoted scalar resolves to."""
    tag: str = resolver.resolve(yaml.ScalarNode, text, (True, False))
    return tag


def _construct_integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(node.value, 0 if node.value[:2] in ("0x", "0o") else 10)


_CORE_SCHEMA: Final = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
for _name, (_pattern, _first) in _CORE_SCHEMA.items():
    _tag = f"tag:yaml.org,2002:{_name}"
    for _class in (_Loader, _Dumper):  # the dumper quotes text that any version of YAML would misread
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), [*_first, ""])
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_integer)
_Loader.add_multi_constructor("!", _construct)
