"""Recipes for derived arrays. A recipe gives the function, the inputs and the dimension mappings of each
array.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml

from icefloe._internal.paths import LEDGERS, ROOT, is_within, join, normalize
from icefloe.errors import ErrorKind, InvalidInputError

PERIODS: Final = ("day", "month", "year")
"""Calendar periods that follow one another and do not recur."""
RECURRING: Final = {"dayofyear": "dayofyear", "monthofyear": "month", "season": "season"}
"""The recurring periods, with the names of the dimensions that xarray's groupby creates."""
BUILT_IN: Final = (
    "mean",
    "sum",
    "min",
    "max",
    "std",
    "count",
    "nearest",
    "mode",
    "quantile",
    "anomaly",
    "resample",
    "coarsen",
    "copy",
    "quantise",
    "expression",
    "pyramid",
)
METHODS: Final = ("mean", "sum", "min", "max", "std", "count", "nearest", "mode")
"""The functions that reduce several cells to one."""
PYRAMID_METHODS: Final = ("mean", "nearest", "mode")
_ARGUMENTS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys((*METHODS, "anomaly", "copy"), frozenset()),
    "quantile": frozenset(("q", "method")),
    "quantise": frozenset(("digits", "bits")),
    "pyramid": frozenset(("levels", "method")),
}
_ALIASES: Final = {"rechunk": "copy", "quantize": "quantise", "quantiles": "quantile"}
_URL: Final = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_CODE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_KEYS: Final = ("repository", "outputs", "branch", "trust_unchecked", "storage_options")
_OUTPUT_KEYS: Final = (
    "function",
    "inputs",
    "dimensions",
    "chunks",
    "dtype",
    "attributes",
    "encoding",
    "path",
    "branch",
    "version",
    "trust_unchecked",
)
_ENCODING_KEYS: Final = ("dtype", "scale_factor", "add_offset", "_FillValue", "codec")
_INPUT_KEYS: Final = ("array", "repository", "branch", "tag", "snapshot", "storage_options")
_MAPPINGS: Final = ("same", "halo", "coarsen", "reduce", "group", "window")


@dataclass(frozen=True, slots=True)
class Same:
    """A dimension mapping in a recipe: each output cell depends on the same input cell, and on a halo of
    `before` and `after` cells.
    """

    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Coarsen:
    """A dimension mapping in a recipe: one output cell per `factor` input cells. The last output cell may
    cover fewer.
    """

    factor: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """A dimension mapping in a recipe: the function reduces the dimension, so the output does not have it."""


@dataclass(frozen=True, slots=True)
class Group:
    """A dimension mapping in a recipe: cells are grouped by a period of their time, or by the values of an
    array."""

    by: str
    """The grouping key: a period such as `time.day` or `time.season`, or the name of an array."""


@dataclass(frozen=True, slots=True)
class Window:
    """A dimension mapping in a recipe: a user's function returns the range of input cells for each output
    cell.
    """

    function: str
    size: int | None = None
    """The output length along the dimension; None for the input length."""


DimensionMapping: TypeAlias = Same | Coarsen | Reduce | Group | Window


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The description of an input array in a recipe."""

    name: str
    array: str
    repository: str | None = None
    """The location of the repository; None for the repository of the recipe."""
    version: tuple[Literal["branch", "tag", "snapshot_id"], str] | None = None
    """The version to read; None for the branch to which the output is written."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The description of one derived array in a recipe."""

    name: str
    function: str
    """The function to apply: the name of a built-in function, or `module:function`."""
    arguments: Mapping[str, Any]
    inputs: tuple[InputSpec, ...]
    dimensions: Mapping[str, DimensionMapping]
    chunks: Mapping[str, int]
    dtype: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    branch: str = "main"
    version: str = ""
    trust_unchecked: bool = False
    pyramid: OutputSpec | None = None
    """The pyramid output of which this output is a level; None for other outputs."""

    @property
    def code(self) -> tuple[str, ...]:
        """The names of the user's functions that the output calls, as `module:function`."""
        windows = [each.function for each in self.dimensions.values() if isinstance(each, Window)]
        return (*([self.function] if ":" in self.function else []), *windows)

    @property
    def is_built_in(self) -> bool:
        """True if computing the output does not run user code."""
        return not self.code


@dataclass(frozen=True, slots=True)
class DeriveRecipe:
    """A recipe for derived arrays. Relative paths are resolved against the folder of the recipe file."""

    repository: str
    outputs: tuple[OutputSpec, ...]
    folder: Path
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def load_recipe(recipe: str | Path | Mapping[str, Any]) -> DeriveRecipe:
    """Load a recipe for derived arrays from a YAML file, or from a mapping of the same structure.

    If the recipe is invalid, InvalidInputError names the file, the output and the key.
    """
    if isinstance(recipe, Mapping):
        return parse_recipe(recipe, Path.cwd(), "recipe")
    file = Path(recipe)
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _make_error(str(file), "there is no such file") from None
    except IsADirectoryError:
        raise _make_error(str(file), "it is a folder, not a recipe file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise _make_error(str(file), f"it is not valid YAML: {where}{problem}") from error
    return parse_recipe(found, file.absolute().parent, str(file))


def parse_recipe(found: Any, folder: Path, where: str) -> DeriveRecipe:
    """Parse a recipe for derived arrays, and fill in its defaults."""
    found = _mapping(where, found, "a recipe", _KEYS)
    repository = found.get("repository")
    if not isinstance(repository, str) or not repository:
        raise _make_error(where, "the key repository is missing; set it to a path or URL")
    outputs = _mapping(where, found.get("outputs"), "outputs")
    if not outputs:
        raise _make_error(where, "the key outputs is missing; set it to a mapping of names to descriptions")
    defaults = {key: found[key] for key in ("branch", "trust_unchecked") if key in found}
    parsed = tuple(
        parse_output(f"{where}: output {name}", str(name), {**defaults, **_mapping(where, each, f"{name}")})
        for name, each in outputs.items()
    )
    located = tuple(_locate(each, folder) for each in parsed)
    options = _mapping(where, found.get("storage_options") or {}, "storage_options")
    return DeriveRecipe(_location(repository, folder), located, folder, options)


def parse_output(where: str, name: str, found: Mapping[str, Any]) -> OutputSpec:
    """Parse the description of one output of a recipe, and fill in its defaults."""
    _mapping(where, found, "an output", _OUTPUT_KEYS)
    if "/" in name or not name:
        raise _make_error(
            where, "the name of an output cannot contain slashes; set path to choose its location"
        )
    function, arguments = _parse_function(where, found.get("function"))
    inputs = found.get("inputs")
    if isinstance(inputs, str):
        inputs = {normalize("/" + inputs).rpartition("/")[2]: inputs}
    inputs = _mapping(where, inputs, "inputs")
    if not inputs:
        raise _make_error(where, "the key inputs is missing; set it to a mapping of names to arrays")
    dimensions = {
        str(dim): _parse_mapping(f"{where}: dimension {dim}", each)
        for dim, each in _mapping(where, found.get("dimensions") or {}, "dimensions").items()
    }
    chunks = _mapping(where, found.get("chunks") or {}, "chunks")
    for dim, size in chunks.items():
        if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
            raise _make_error(
                where, f"chunks along {dim} must be a positive integer, or -1 for all, not {size!r}"
            )
    function, arguments, dimensions = _expand(where, function, arguments, dimensions)
    path = None if found.get("path") is None else _parse_path(where, found["path"])
    if path is not None and is_within(path, LEDGERS):
        raise _make_error(where, f"{LEDGERS} belongs to icefloe itself; choose another path")
    return OutputSpec(
        name,
        function,
        arguments,
        tuple(_parse_input(where, str(each), value) for each, value in inputs.items()),
        dimensions,
        {str(dim): size for dim, size in chunks.items()},
        None if found.get("dtype") is None else str(found["dtype"]),
        _mapping(where, found.get("attributes") or {}, "attributes"),
        _parse_encoding(where, found.get("encoding") or {}),
        path,
        str(found.get("branch", "main")),
        str(found.get("version", "")),
        bool(found.get("trust_unchecked", False)),
    )


def _parse_function(where: str, given: Any) -> tuple[str, dict[str, Any]]:
    """Parse the function of an output: `mean`, `module:function`, or a mapping from one function name to its
    arguments.
    """
    arguments: dict[str, Any] = {}
    if isinstance(given, Mapping) and len(given) == 1:
        ((given, found),) = given.items()
        if given == "expression":
            found = {"expression": found}
        arguments = _mapping(where, found or {}, f"the arguments of {given}")
    if not isinstance(given, str) or not given:
        raise _make_error(
            where, "the key function is missing; set it to a name, module:function, or a name with arguments"
        )
    name = _ALIASES.get(given, given)
    if name in BUILT_IN or _CODE.fullmatch(name):
        return name, arguments
    near = difflib.get_close_matches(name, BUILT_IN, n=1)
    hint = f"did you mean {near[0]}?" if near else f"functions are {', '.join(BUILT_IN)}, or module:function"
    raise _make_error(where, f"unknown function {name!r}; {hint}")


def _expand(
    where: str, function: str, arguments: dict[str, Any], dimensions: dict[str, DimensionMapping]
) -> tuple[str, dict[str, Any], dict[str, DimensionMapping]]:
    """Rewrite `resample` and `coarsen` as a reduction with a dimension mapping."""
    unknown = arguments.keys() - _ARGUMENTS[function] if function in _ARGUMENTS else set()
    if unknown:
        raise _make_error(where, f"{function} has no argument {min(unknown)!r}")
    if function == "pyramid":
        return function, _pyramid_arguments(where, arguments), dimensions
    if function not in ("resample", "coarsen"):
        return function, arguments, dimensions
    rest = dict(arguments)
    method = str(rest.pop("method", "mean"))
    if method not in METHODS:
        raise _make_error(where, f"{function} has no method {method!r}; methods are {', '.join(METHODS)}")
    mapped = {
        str(dim): _parse_kind(f"{where}: dimension {dim}", "coarsen", value, None)
        if function == "coarsen"
        else Group(f"{dim}.{value}")
        for dim, value in rest.items()
    }
    if not mapped and not dimensions:
        raise _make_error(where, f"{function} requires a dimension, such as {{{function}: {{time: ...}}}}")
    return method, {}, {**dimensions, **mapped}


def _pyramid_arguments(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    levels, method = given.get("levels"), given.get("method", "mean")
    if levels is not None and not (_is_count(levels) and levels):
        raise _make_error(where, f"levels must be a positive number, not {levels!r}")
    if method not in PYRAMID_METHODS:
        raise _make_error(
            where, f"pyramid has no method {method!r}; methods are {', '.join(PYRAMID_METHODS)}"
        )
    return {"levels": levels, "method": method}


def _parse_mapping(where: str, given: Any) -> DimensionMapping:
    if given == "same" or given is None:
        return Same()
    if given == "reduce":
        return Reduce()
    if isinstance(given, Mapping) and given:
        keys = [key for key in given if key in _MAPPINGS]
        rest = [key for key in given if key not in (*_MAPPINGS, "size")]
        if len(keys) == 1 and not rest and ("size" not in given or keys == ["window"]):
            return _parse_kind(where, keys[0], given[keys[0]], given.get("size"))
    raise _make_error(where, f"expected same, or one of {', '.join(_MAPPINGS[1:])}, not {given!r}")


def _parse_kind(where: str, kind: str, value: Any, size: Any) -> DimensionMapping:
    if kind == "same":
        return Same()
    if kind == "halo":
        sizes = [value, value] if isinstance(value, int) else value
        if isinstance(sizes, list) and len(sizes) == 2 and all(_is_count(each) for each in sizes):
            return Same(*sizes)
        raise _make_error(where, f"halo must be [before, after] in cells, not {value!r}")
    if kind == "coarsen":
        if _is_count(value) and value > 0:
            return Coarsen(value)
        raise _make_error(where, f"coarsen must be a positive number of cells, not {value!r}")
    if kind == "reduce":
        if value is True:
            return Reduce()
        raise _make_error(where, f"reduce must be true, not {value!r}")
    if kind == "group" and isinstance(value, str) and value:
        return Group(value)
    if kind == "window" and isinstance(value, str) and _CODE.fullmatch(value):
        if size is not None and not _is_count(size):
            raise _make_error(where, f"size must be a number of cells, not {size!r}")
        return Window(value, size)
    raise _make_error(where, f"{kind} cannot be {value!r}")


def _parse_encoding(where: str, given: Any) -> dict[str, Any]:
    found = _mapping(where, given, "encoding", _ENCODING_KEYS)
    for key in ("scale_factor", "add_offset"):
        value = found.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _make_error(where, f"{key} in encoding must be a number, not {value!r}")
    if found.get("scale_factor") == 0:
        raise _make_error(where, "scale_factor in encoding must not be 0")
    return found


def _parse_input(where: str, name: str, given: Any) -> InputSpec:
    if not name.isidentifier():
        raise _make_error(where, f"the name of an input must be an identifier, not {name!r}")
    if isinstance(given, str) and given:
        return InputSpec(name, _parse_path(f"{where}: input {name}", given))
    found = _mapping(f"{where}: input {name}", given, "an input", _INPUT_KEYS)
    array = found.get("array", name)
    versions = [key for key in ("branch", "tag", "snapshot") if key in found]
    if len(versions) > 1:
        raise _make_error(
            where, f"input {name} selects several versions; set only one of branch, tag and snapshot"
        )
    version: Any = None
    if versions:
        version = ("snapshot_id" if versions[0] == "snapshot" else versions[0], str(found[versions[0]]))
    options = _mapping(where, found.get("storage_options") or {}, "storage_options")
    repository = found.get("repository")
    path = _parse_path(f"{where}: input {name}", array)
    return InputSpec(name, path, repository, version, options)


def _parse_path(where: str, given: Any) -> str:
    path = normalize(f"/{given}")
    if path == ROOT:
        raise _make_error(where, "/ is the root group; give the path of an array")
    return path


def _locate(output: OutputSpec, folder: Path) -> OutputSpec:
    inputs = tuple(
        each if each.repository is None else replace(each, repository=_location(each.repository, folder))
        for each in output.inputs
    )
    return replace(output, inputs=inputs)


def _location(name: str, folder: Path) -> str:
    return name if _URL.match(name) or name.startswith("~") else str(folder / name)


def describe_output(output: OutputSpec) -> dict[str, Any]:
    """Convert an output back to its form in a recipe file, without secrets."""
    arguments = {key: value for key, value in output.arguments.items() if value is not None}
    if output.function == "expression":
        arguments = arguments["expression"]
    found: dict[str, Any] = {
        "function": {output.function: arguments} if arguments else output.function,
        "inputs": {each.name: _describe_input(each) for each in output.inputs},
        "dimensions": {dim: _describe_mapping(each) for dim, each in output.dimensions.items()},
    }
    for key in ("chunks", "dtype", "attributes", "encoding", "path", "branch", "version", "trust_unchecked"):
        found[key] = getattr(output, key)
    return {key: value for key, value in found.items() if value not in (None, "", False) and value != {}}


def _describe_input(given: InputSpec) -> Any:
    found: dict[str, Any] = {"array": given.array}
    if given.repository is not None:
        found["repository"] = given.repository
    if given.version is not None:
        kind, name = given.version
        found["snapshot" if kind == "snapshot_id" else kind] = name
    return found if len(found) > 1 else given.array


def _describe_mapping(mapping: DimensionMapping) -> Any:
    match mapping:
        case Same(before=0, after=0):
            return "same"
        case Same(before=before, after=after):
            return {"halo": [before, after]}
        case Coarsen(factor=factor):
            return {"coarsen": factor}
        case Reduce():
            return {"reduce": True}
        case Group(by=by):
            return {"group": by}
    return {"window": mapping.function, **({} if mapping.size is None else {"size": mapping.size})}


def order_outputs(outputs: Iterable[OutputSpec], paths: Mapping[str, str]) -> list[OutputSpec]:
    """Sort the outputs of a recipe topologically, so that each output follows the outputs it reads. `paths`
    maps output names to array paths.

    Raises InvalidInputError if outputs depend on each other in a cycle.
    """
    todo = {each.name: each for each in outputs}
    done: list[OutputSpec] = []
    while todo:
        ready = [each for each in todo.values() if not _list_needed_outputs(each, paths) & todo.keys()]
        if not ready:
            raise _make_error("recipe", f"the outputs {', '.join(todo)} depend on each other in a cycle")
        done += ready
        for each in ready:
            del todo[each.name]
    return done


def _list_needed_outputs(output: OutputSpec, paths: Mapping[str, str]) -> set[str]:
    """Return the names of the outputs that an output reads."""
    own = [each.array for each in output.inputs if each.repository is None and each.version is None]
    needed = {
        name
        for name, path in paths.items()
        if join("/", name) in own or any(is_within(each, path) for each in own)
    }
    return needed - {output.name}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _mapping(where: str, found: Any, what: str, known: Iterable[str] = ()) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise _make_error(where, f"{what} must be a mapping")
    names = list(known)
    for key in found:
        if names and key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(names)}"
            raise _make_error(where, f"unknown key {key!r}; {hint}")
    return {str(key): value for key, value in found.items()}


def _make_error(where: str, text: str) -> InvalidInputError:
    return InvalidInputError(f"{where}: {text}", ErrorKind.INVALID_COMMIT_CONFIGURATION)
