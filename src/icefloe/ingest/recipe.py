"""Recipes: YAML files that describe an ingest, which can be versioned and run repeatedly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.options import (
    DEFAULT_CHECKS,
    NEEDS,
    SHORT_FORM,
    Check,
    Options,
    list_options,
    make_options,
    suggest_name,
)

_URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_KEYS = ("sources", "repository", "repository_options", "checks", "executor", "spark_conf", "options")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parsed recipe of an ingest. Paths are relative to the directory of the recipe file."""

    sources: tuple[str, ...]
    repository: str
    repository_options: Mapping[str, Any] = field(repr=False)
    options: Options
    arguments: Mapping[str, Any]
    """The options, as keyword arguments for `icefloe.ingest_files`."""
    executor: str
    """The executor: `spark[:MASTER]`, `processes[:N]` or `threads`; empty for the default."""
    spark_conf: Mapping[str, str]


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Load an ingest recipe from a file. `overrides` replace options from the file. Errors name the file."""
    file = Path(path)
    found = _read_yaml(file)
    for key in found:
        if key not in _KEYS and key in list_options():
            raise _make_error(file, f"{key} belongs below options: options: {{{key}: ...}}")
    _refuse_unknown(file, "", found, _KEYS)
    sources, repository = found.get("sources"), found.get("repository")
    names = [sources] if isinstance(sources, str) else sources
    if not isinstance(names, list) or not names or not all(name and isinstance(name, str) for name in names):
        raise _make_error(file, "it needs sources: a path, pattern or URL, or a list of these")
    if not isinstance(repository, str) or not repository:
        raise _make_error(file, "it needs a repository: a path or URL")
    options = _get_mapping(file, found, "options")
    if "checks" in options:
        raise _make_error(file, "checks belong next to options, not below them")
    checks = found.get("checks", list(DEFAULT_CHECKS))
    try:
        asked = {"checks": _parse_checks(file, checks), **options, **(overrides or {})}
        if "source_options" in asked:
            asked["storage_options"] = asked.pop("source_options")
        chosen = make_options(**{str(name): value for name, value in asked.items()})
    except _RecipeError:
        raise
    except InvalidInputError as error:
        raise _make_error(file, error.message, error.hint) from error
    return Recipe(
        tuple(_resolve_path(file, name) for name in names),
        _resolve_path(file, repository),
        _get_mapping(file, found, "repository_options"),
        chosen,
        {**asked, "storage_options": None, "source_options": chosen.reading.storage_options},
        str(found.get("executor", "")),
        {
            str(name): _format_setting(value)
            for name, value in _get_mapping(file, found, "spark_conf").items()
        },
    )


def _format_setting(value: Any) -> str:
    """Format a value in the way that Spark formats configuration values."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_yaml(file: Path) -> dict[Any, Any]:
    try:
        found = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _make_error(file, f"it is not valid YAML: {where}{error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _make_error(file, f"it is not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        raise _make_error(file, "it must be a mapping with sources and repository")
    return found


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys. SafeLoader would silently keep the last value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        # docstring inherited
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"the key {key.value} appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse_unknown(file: Path, where: str, found: Mapping[Any, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise _make_error(file, f"{where}unknown key {key}; {suggest_name(key, known, 'keys are')}")


def _get_mapping(file: Path, found: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key) or {}
    if not isinstance(value, dict):
        raise _make_error(file, f"{key} must be a mapping")
    return value


def _parse_checks(file: Path, given: Any) -> tuple[Check, ...]:
    """Parse a list of checks. Each item is a check name, or a mapping from a check name to its arguments."""
    if not isinstance(given, list):
        raise _make_error(file, "checks must be a list")
    checks = []
    for each in given:
        if isinstance(each, str):
            checks.append(Check(each))
        elif isinstance(each, dict) and len(each) == 1:
            ((name, needs),) = each.items()
            if isinstance(needs, str) and name in SHORT_FORM:
                needs = {SHORT_FORM[name]: needs}
            if needs is not None and not isinstance(needs, dict):
                raise _make_error(file, f"check {name}: expected its arguments as a mapping, not {needs!r}")
            _refuse_unknown(file, f"check {name}: ", needs or {}, NEEDS.get(str(name), tuple(needs or ())))
            checks.append(Check(str(name), **(needs or {})))
        else:
            raise _make_error(file, f"{each!r} is not a check: expected a name, or a name with arguments")
    return tuple(checks)


def _resolve_path(file: Path, name: str) -> str:
    return name if _URL.match(name) or name.startswith("~") else str(file.absolute().parent / name)


class _RecipeError(InvalidInputError):
    """An error whose message already names the recipe file."""


def _make_error(file: Path, text: str, hint: Hint | None = None) -> InvalidInputError:
    return _RecipeError(f"{file}: {text}", ErrorKind.INVALID_COMMIT_CONFIGURATION).with_hint(hint)
