"""Rules for the source code that no linter checks (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

import pytest

from icefloe import errors
from tests.support.program_imports import find_unmarked_programs
from tests.support.source_tree import (
    ROOT,
    Module,
    imports_of,
    last_name,
    outside_modules,
    parse,
    source_modules,
)

MAX_CODE_LINES = 600
LONGER = {"icefloe.repository": 985}  # one public class, of which the signatures are half

# What differs by format version sits here; everything else asks for a capability.
VERSIONED = re.compile(r"icefloe\.(format\.(spec|v1|v2|alpha)|core\.refs(_\w+)?)(\.|$)")
VERSION_NAME = re.compile(r"^(\w+_)?(spec|spec_version|format_version|file_version)$", re.IGNORECASE)

MAY_READ_ENVIRONMENT = re.compile(r"^(\w+_from_env|initialize_logs|set_logs_filter|install_as_icechunk)$")
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.putenv"}

IMPURE_MODULES = {
    "asyncio",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "subprocess",
}
IMPURE_MODULES |= {"tempfile", "threading", "time"}
IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today", "urandom", "default_rng"}

# Names of the official package that users import.
GIVEN_NAMES = {"icefloe.testing.utils"}
# Folders of tests that are about no single package: they compare, install or prove the whole.
TESTS_OF_THE_WHOLE = {"tests.compat", "tests.proof", "tests.setup", "tests.web"}
QUOTE_IMPORTS = {"tests.test_layering", "tests.test_house_rules"}
"""Tests of rules: they parse the programs in their strings, and do not run them."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
HAVE_OPTIONS = {"icefloe.spark.java", "icefloe.testing.simulation", "icefloe.serve.snippets"}
"""Modules with options of other command lines, and the one that writes commands for users to copy."""
OUR_ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.IcechunkError)
}

# Terms of the specification, which also name the public values that are built from them.
SHARED_CLASS_NAMES = {"ManifestFileInfo", "RepoAvailability", "RepoStatus", "SnapshotInfo", "Update"}

EMPTY_NAMES = re.compile(r"^(utils?|helpers?|misc|common)$|Manager$|^Base|Base$")


def code_lines(module: Module) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    docstrings = {
        line
        for node in module.nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    silent |= {tokenize.ENDMARKER, tokenize.ENCODING}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type not in silent
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstrings)


def version_comparisons(module: Module) -> Iterator[str]:
    """Comparisons and matches on the version of the format, outside the modules that are made for it."""
    if VERSIONED.match(module.name):
        return
    for node in module.nodes:
        if isinstance(node, ast.Compare):
            asked = any(_is_version(side, node) for side in (node.left, *node.comparators))
        elif isinstance(node, ast.Match):
            asked = bool(VERSION_NAME.match(last_name(node.subject)))
        else:
            continue
        if asked:
            yield f"{module.name}:{node.lineno} compares versions: {ast.unparse(node).splitlines()[0]}"


def environment_reads(module: Module) -> Iterator[str]:
    """Uses of environment variables outside the command line and the functions that are named for it."""
    if module.component == "cli":
        return
    allowed = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and MAY_READ_ENVIRONMENT.match(node.name)
        for inner in ast.walk(node)
    }
    for node in module.nodes:
        imported = isinstance(node, ast.ImportFrom) and any(
            f"{node.module}.{alias.name}" in ENVIRONMENT for alias in node.names
        )
        used = isinstance(node, ast.Attribute) and f"{last_name(node.value)}.{node.attr}" in ENVIRONMENT
        if (imported or used) and id(node) not in allowed:
            yield f"{module.name}:{getattr(node, 'lineno', 0)} reads the environment"


def impurities(module: Module) -> Iterator[str]:
    """I/O, clock, randomness and logging in the layers that only turn bytes into values and back."""
    if module.component not in {"format", "encoding"}:
        return
    for imported in imports_of(module):
        if imported.target.split(".")[0] in IMPURE_MODULES:
            yield f"{module.name}:{imported.line} imports {imported.target}"
    for node in module.nodes:
        if isinstance(node, ast.Call) and last_name(node.func) in IMPURE_CALLS:
            yield f"{module.name}:{node.lineno} calls {ast.unparse(node.func)}"


def empty_names(module: Module) -> Iterator[str]:
    """Find modules and classes with meaningless names."""
    if module.name not in GIVEN_NAMES and EMPTY_NAMES.search(module.name.split(".")[-1]):
        yield f"{module.name}: name it after what it holds"
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and EMPTY_NAMES.search(node.name):
            yield f"{module.name}:{node.lineno} class {node.name}: name it after what it is"


def shared_class_names(modules: Iterable[Module]) -> Iterator[str]:
    """Find public classes of different modules that have the same name."""
    first: dict[str, str] = {}
    for module in modules:
        for node in module.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            other = first.setdefault(node.name, module.name)
            if other != module.name and node.name not in SHARED_CLASS_NAMES:
                yield f"{module.name}:{node.lineno} class {node.name}: {other} has a class of this name"


def misplaced_tests(module: Module, known: set[str]) -> Iterator[str]:
    """Find tests in folders without a counterpart among the `known` modules, and helpers among tests."""
    folder, _, file = module.name.rpartition(".")
    if module.is_package or not module.name.startswith("tests.") or folder.startswith("tests.support"):
        return
    if not file.startswith("test_") and file != "conftest":
        yield f"{module.name} is not a test: move it to tests/support"
    if folder not in {"tests", *TESTS_OF_THE_WHOLE} and folder.replace("tests", "icefloe", 1) not in known:
        yield f"{module.name}: there is no {folder.replace('tests', 'icefloe', 1)}"


def imports_of_tests(module: Module) -> Iterator[str]:
    """Find imports from modules that contain tests: what two of them need belongs to tests/support."""
    for imported in imports_of(module):
        parts = imported.target.split(".")
        if parts[0] == "tests" and any(part.startswith("test_") for part in parts[:-1]):
            yield f"{module.name}:{imported.line} imports {imported.target}"


def command_line_options(module: Module) -> Iterator[str]:
    """Options of the command line in texts of the library; an error names them in its `hint`."""
    if module.component == "cli" or module.name in HAVE_OPTIONS:
        return
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OPTION.search(node.value):
            yield f"{module.name}:{node.lineno} names an option of the command line: {node.value[:60]!r}"


def matches_on_messages(module: Module) -> Iterator[str]:
    """Decisions on, and changes of, the text of our own errors; they have a type, a `kind` and a `hint`."""
    for handler in module.nodes:
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None or handler.name is None:
            continue
        caught = {
            last_name(each) for each in ast.walk(handler.type) if isinstance(each, ast.Name | ast.Attribute)
        }
        if not caught & OUR_ERRORS:
            continue
        for node in ast.walk(handler):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                texts = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in {"startswith", "endswith", "replace", "removeprefix", "removesuffix"}:
                    texts = [node.func.value]
                elif node.func.attr in {"search", "match", "fullmatch", "sub"}:
                    texts = list(node.args)
            if any(_is_message(each, handler.name) for each in texts):
                yield f"{module.name}:{handler.lineno} depends on the text of an error"


def _is_message(node: ast.expr, error: str) -> bool:
    return ast.unparse(node) in {f"str({error})", f"{error}.message", f"repr({error})"}


def test_no_module_is_too_long() -> None:
    modules = (*source_modules(), *outside_modules())
    long = [module for module in modules if module.text.count("\n") > MAX_CODE_LINES]

    found = {
        module.name: lines
        for module in long
        if (lines := code_lines(module)) > LONGER.get(module.name, MAX_CODE_LINES)
    }

    assert found == {}


def test_versions_are_compared_only_where_formats_differ() -> None:
    assert [problem for module in source_modules() for problem in version_comparisons(module)] == []


def test_environment_is_read_only_where_named() -> None:
    assert [problem for module in source_modules() for problem in environment_reads(module)] == []


def test_format_and_encoding_are_pure() -> None:
    assert [problem for module in source_modules() for problem in impurities(module)] == []


def test_function_and_module_names_are_meaningful() -> None:
    assert [problem for module in source_modules() for problem in empty_names(module)] == []


def test_class_names_are_unique() -> None:
    assert list(shared_class_names(source_modules())) == []


def test_tests_mirror_the_package() -> None:
    known = {module.name for module in source_modules()}

    assert [problem for module in outside_modules() for problem in misplaced_tests(module, known)] == []


def test_tests_share_helpers_through_support() -> None:
    assert [problem for module in outside_modules() for problem in imports_of_tests(module)] == []


def test_scripts_in_tests_import_only_declared_packages() -> None:
    """Otherwise the test fails in `make test-core`, where the package is missing."""
    modules = [each for each in outside_modules() if ".test_" in each.name and each.name not in QUOTE_IMPORTS]

    assert [line for module in modules for line in find_unmarked_programs(module)] == []


def test_library_does_not_mention_command_line_options() -> None:
    assert [problem for module in source_modules() for problem in command_line_options(module)] == []


def test_no_code_depends_on_the_text_of_our_errors() -> None:
    assert [problem for module in source_modules() for problem in matches_on_messages(module)] == []


def test_code_lines_leave_out_blank_lines_comments_and_docstrings() -> None:
    text = '"""Doc.\n\nMore."""\n\n# why\ndef f():\n    """Doc."""\n    return """\n\n"""  # one\n'

    assert code_lines(parse("icefloe.core.sample", text)) == 4


@pytest.mark.parametrize(
    "text",
    [
        "if repo.spec_version < 2: pass",
        "new = 2 <= spec_version",
        "if header.version == 1: pass",
        "if spec is SpecVersion.V1: pass",
        "if self._refs.spec != other: pass",
        "if version in (1, 2): pass",
        "match repo.spec_version:\n    case 1: pass",
    ],
)
def test_version_comparison_is_detected(text: str) -> None:
    assert len(list(version_comparisons(parse("icefloe.core.commit.flush", text)))) == 1
    assert list(version_comparisons(parse("icefloe.format.spec", text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "if refs.spec.moves: pass",
        "if spec is None: pass",
        "if version == expected: pass",
        "if sys.version_info >= (3, 12): pass",
    ],
)
def test_capability_checks_are_not_version_comparisons(text: str) -> None:
    assert list(version_comparisons(parse("icefloe.core.commit.flush", text))) == []


@pytest.mark.parametrize(
    "text",
    ["import os\nx = os.environ['A']", "import os\nx = os.getenv('A')", "from os import environ"],
)
def test_environment_read_is_detected(text: str) -> None:
    assert len(list(environment_reads(parse("icefloe.core.commit.flush", text)))) == 1
    assert list(environment_reads(parse("icefloe.cli.main", text))) == []


def test_factory_named_from_env_may_read_the_environment() -> None:
    module = parse("icefloe.storage.factories", "def s3_from_env():\n    return os.environ['A']")

    assert list(environment_reads(module)) == []


@pytest.mark.parametrize(
    "text",
    ["import time", "from random import choice", "import logging", "open('a')", "datetime.now()"],
)
def test_impure_import_is_detected(text: str) -> None:
    assert len(list(impurities(parse("icefloe.format.v2", text)))) == 1
    assert list(impurities(parse("icefloe.storage.local.folder", text))) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("icefloe.core.utils", ""),
        ("icefloe.core.refs.base", "class RefManager: pass"),
        ("icefloe.core.refs.base", "class BaseRef: pass"),
    ],
)
def test_meaningless_name_is_detected(name: str, text: str) -> None:
    assert len(list(empty_names(parse(name, text)))) == 1


def test_shared_class_name_is_detected() -> None:
    modules = [parse("icefloe.core.open", "class Plan: pass"), parse("icefloe.serve.app", "class Plan: pass")]

    assert len(list(shared_class_names(modules))) == 1


@pytest.mark.parametrize("name", ["tests.core.samples", "tests.samples", "tests.upkeep.test_gc"])
def test_misplaced_test_is_detected(name: str) -> None:
    assert len(list(misplaced_tests(parse(name, ""), {"icefloe.core", "icefloe.store"}))) == 1


@pytest.mark.parametrize(
    "name",
    [
        "tests.test_docs",
        "tests.core.test_gc",
        "tests.store.conftest",
        "tests.support.samples",
        "benchmarks.run",
    ],
)
def test_correctly_placed_test_is_allowed(name: str) -> None:
    assert list(misplaced_tests(parse(name, ""), {"icefloe.core", "icefloe.store"})) == []


def test_import_from_a_test_is_detected() -> None:
    module = parse(
        "tests.core.test_gc", "from tests.core.test_expire import commit\nfrom tests import support"
    )

    assert len(list(imports_of_tests(module))) == 1


@pytest.mark.needs("pyspark", "pyarrow")
@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("P = 'import pyspark'", ["pyspark"]),
        ("P = 'import sys; from icefloe.spark.executor import _run'", ["pyarrow", "pyspark"]),
        ("P = 'from icefloe import ingest_files'", []),
        ("import pytest\npytestmark = pytest.mark.needs('pyspark')\nP = 'import pyspark'", []),
        ("def test():\n    import pyspark\n    run('import pyspark')", []),
    ],
)
def test_test_program_with_unmarked_packages_is_detected(text: str, missing: list[str]) -> None:
    found = " ".join(find_unmarked_programs(parse("tests.spark.test_x", text)))

    assert [name for name in ("pyarrow", "pyspark") if name in found.partition("needs")[2]] == missing


@pytest.mark.parametrize("text", ["'give --on-change ingest'", "f'{x}: --hybrid copies it'", '"(--group)"'])
def test_command_line_option_in_a_library_message_is_detected(text: str) -> None:
    assert len(list(command_line_options(parse("icefloe.core.commit.flush", text)))) == 1
    assert list(command_line_options(parse("icefloe.cli.main", text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "'gone' in str(error)",
        "error.message.startswith('x')",
        "str(error).replace('a', 'b')",
        "re.sub('a', 'b', error.message)",
    ],
)
def test_match_on_an_error_message_is_detected(text: str) -> None:
    body = f"try:\n    work()\nexcept {{}} as error:\n    found = {text}"

    assert len(list(matches_on_messages(parse("icefloe.core.open", body.format("InvalidInputError"))))) == 1
    assert list(matches_on_messages(parse("icefloe.core.open", body.format("xarray.MergeError")))) == []


def test_every_compat_test_is_marked() -> None:
    """An unmarked test would run wherever that package is installed, and never in `make compat`."""
    folder = ROOT / "tests"
    modules = [*folder.glob("compat/test_*.py"), *folder.rglob("*_compat.py")]

    assert modules
    assert [path.name for path in modules if "mark.compat" not in path.read_text(encoding="utf-8")] == []


def _is_version(side: ast.expr, comparison: ast.Compare) -> bool:
    name = last_name(side)
    others = [other for other in (comparison.left, *comparison.comparators) if other is not side]
    if VERSION_NAME.match(name):
        return not all(isinstance(other, ast.Constant) and other.value is None for other in others)
    # A plain `version` is also the token of a stored object, which is compared with another token.
    return name == "version" and any(_has_number(other) for other in others)


def _has_number(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Constant) and isinstance(inner.value, int) for inner in ast.walk(node))
