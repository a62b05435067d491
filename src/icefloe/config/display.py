"""Display configuration values as code that creates them, as an indented tree, or as HTML."""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from icefloe._internal.printable import escape_control, escape_control_in_json, escape_control_in_lines
from icefloe._internal.redaction import HIDDEN, may_be_secret, redact

PACKAGE = "icefloe"
"""The package name in reprs. It changes when icefloe is installed as icechunk."""

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Tree:
    """A configuration value for display: the name of its class, and its fields as text or nested trees."""

    title: str
    fields: tuple[tuple[str, str | Tree], ...]

    def as_text(self) -> str:
        """Return the tree as text, indented by four spaces per level."""
        lines = [f"<{self.title}>"] if self.title else []
        for name, value in self.fields:
            if isinstance(value, Tree):
                lines.append(f"{escape_control(redact(name))}:")
                lines += [_INDENT + line for line in value.as_text().splitlines()]
            else:
                # Indent further lines, so that they do not look like other fields.
                shown = escape_control_in_lines(redact(value)).replace("\n", f"\n{_INDENT}")
                lines.append(f"{escape_control(redact(name))}: {shown}")
        return "\n".join(lines)

    def as_html(self) -> str:
        """Return the tree as HTML for notebooks, with collapsed branches."""
        rows = [f"<div><b>{html.escape(self.title)}</b></div>"] if self.title else []
        for name, value in self.fields:
            label = html.escape(escape_control(redact(name)))
            if isinstance(value, Tree):
                inner = f'<div style="margin-left:1em">{value.as_html()}</div>'
                rows.append(f"<details><summary>{label}</summary>{inner}</details>")
            else:
                rows.append(
                    f"<div>{label}: <code>{html.escape(escape_control_in_lines(redact(value)))}</code></div>"
                )
        return f'<div class="{PACKAGE}-repr">{"".join(rows)}</div>'


class Shown(ABC):
    """Base class of values that are displayed as a tree, in text and in notebooks."""

    __slots__ = ()

    @abstractmethod
    def tree(self) -> Tree:
        """Return the configuration value as a tree for display.

        Returns
        -------
        Tree
            The name of the class and its fields.
        """

    def __repr__(self) -> str:
        return self.tree().as_text()

    def __str__(self) -> str:
        return self.tree().as_text()

    def _repr_html_(self) -> str:
        return self.tree().as_html()


def qualify_name(module: str, name: str) -> str:
    """Return the qualified public name of a configuration class, for reprs."""
    return f"{PACKAGE}.{module}.{name}" if module else f"{PACKAGE}.{name}"


def call(name: str, arguments: Mapping[str, str]) -> str:
    """Return a repr in the form of a call, with one keyword argument per line."""
    if not arguments:
        return f"{name}()"
    lines = [_indent(f"{key}={value},") for key, value in arguments.items()]
    return "\n".join([f"{name}(", *lines, ")"])


def format_literal(value: object) -> str:
    """Return the Python literal for a plain value, with strings in double quotes."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return escape_control(json.dumps(redact(value), ensure_ascii=False))
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        rows = [_indent(f"{format_literal(key)}: {format_literal(item)},") for key, item in value.items()]
        return "\n".join(["{", *rows, "}"])
    if isinstance(value, Enum):
        return qualify_name("config", f"{type(value).__name__}.{value.name}")
    return repr(value)


def mask_secrets(options: Mapping[str, str] | None, *, all_values: bool = False) -> str:
    """Format a mapping of options on one line, with `****` for values whose keys suggest a secret."""
    if options is None:
        return "None"
    shown = {
        key: HIDDEN if all_values or may_be_secret(key) else redact(value) for key, value in options.items()
    }
    return escape_control_in_json(json.dumps(shown, ensure_ascii=False))


def _indent(text: str) -> str:
    return "\n".join(_INDENT + line for line in text.splitlines())
