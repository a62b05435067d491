"""Imports point down only, and each foreign package stays behind its border (see the architecture page)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pytest

from tests.support.source_tree import (
    PACKAGE,
    Module,
    component_of,
    imports_of,
    outside_modules,
    parse,
    source_modules,
)

# From the top down. A component may import its own modules, lower floors, and neighbours on its own floor
# unless the two are kept apart below. The empty name is the package itself: what users import.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("pipeline",),
    ("default_executor",),
    ("spark", "serve"),
    ("query",),
    ("", "about", "compatibility", "open_url", "_icechunk_python", "_standing_in"),
    ("derive",),
    ("ingest",),
    ("comparison", "feeds"),
    ("distributed", "xarray", "dask", "virtual", "testing", "export"),
    ("append_labels", "repository", "history"),
    ("legacy",),
    ("maintenance",),
    ("session",),
    ("store",),
    ("core",),
    ("format", "storage"),
    ("encoding",),
    (
        "branch_checks",
        "config",
        "credentials",
        "conflicts",
        "snapshots",
        "ops",
        "types",
        "cf",
        "ancestry_graph",
        "coastlines",
        "charts",
        "_internal.ids",
        "_internal.paths",
        "_internal.concurrency",
        "_internal.executor",
        "_internal.times",
        "_internal.table",
        "_internal.report",
        "_internal.retry",
        "_internal.streams",
        "_internal.amounts",
        "_internal.lazy",
        "_internal.logs",
        "_internal.private_imports",
        "_internal.telemetry",
        "_internal.warnings",
    ),
    ("errors", "_internal.extras", "_internal.html"),
    ("_internal.printable", "_internal.redaction"),
    ("_internal",),
    ("_version",),
)
OFFICIAL = "icechunk"
APART = ({"spark", "serve"}, {"format", "storage"})
FLOOR_OF = {component: floor for floor, row in enumerate(FLOORS) for component in row}

# Package -> its modules and folders from the top down. They import lower rows only; a folder imports itself.
INSIDE: dict[str, tuple[tuple[str, ...], ...]] = {
    "cli": (
        ("main",),
        ("commands",),
        ("authorize", "execution", "plotting"),
        ("params", "slices"),
        ("terminal",),
        ("errors",),
        ("output", "revisions", "values"),
        ("progress",),
        ("",),
    ),
    "history": (
        ("ops", "overview", "versions"),
        ("pages",),
        ("inspect", "snapshots"),
        ("",),
    ),
    "maintenance": (
        ("clone", "gc", "integrity", "retention", "storage_stats", "window"),
        ("copy_objects", "expire", "ops_log", "rewrite_manifests", "statistics", "upgrade_v1"),
        ("commit_graph", "reachable", "reachable_index"),
        ("listings",),
        ("",),
    ),
    "core": (
        ("merge", "create", "handle"),
        (
            "ancestry",
            "listing",
            "materialize",
            "node_summary",
            "open",
            "preload",
            "receipts",
            "reference_columns",
            "reindex",
        ),
        ("changeset_codec",),
        ("commit",),
        ("workspace",),
        ("path_index",),
        ("changeset", "refs"),
        ("assets", "early_manifests", "lookup"),
        (
            "cache",
            "chunk_grid",
            "chunk_values",
            "dimensions",
            "fingerprints",
            "virtual_chunks",
            "zarr_keys",
            "zarr_metadata",
        ),
        ("",),
    ),
    "derive": (
        ("job",),
        ("pyramid",),
        ("lineage", "plan", "compute"),
        ("outputs",),
        ("records",),
        ("functions", "grouping"),
        ("arrays", "axes", "expressions", "reductions"),
        ("recipe", "report", "user_code"),
        ("",),
    ),
    "config": (
        ("repository",),
        ("settings", "stores"),
        ("attribution", "conditions", "feature_flags", "fields"),
        ("display",),
    ),
    "encoding": (
        ("packed_columns",),
        ("envelope",),
        ("flatbuffers", "flexbuffers", "msgpack"),
        ("columns", "json_values"),
        ("",),
    ),
    "format": (
        ("first_files",),
        ("files",),
        (
            "manifest_codec",
            "pruning",
            "repo_changes",
            "repo_info_codec",
            "snapshot_codec",
            "transaction_log_codec",
        ),
        ("manifest_blocks", "repo_info", "snapshot"),
        ("config_yaml", "manifest", "metadata", "transaction_log", "updates"),
        ("chunk_regions",),
        (
            "config_flexbuffers",
            "coordinates",
            "extents",
            "id_columns",
            "locations",
            "refs_v1",
            "schema",
            "spec",
        ),
        ("",),
    ),
    "ingest": (
        ("job", "recipe", "recovery", "rechunk_job"),
        ("publish",),
        ("report", "target_repository"),
        ("report_html", "write"),
        ("plan",),
        ("array_spill",),
        ("combine_batch",),
        ("combine",),
        ("inspect",),
        ("ledger",),
        ("options",),
        ("records",),
        ("bad_files", "read_options"),
        ("discover",),
        ("",),
    ),
    "legacy": (
        ("upgrade",),
        ("convert",),
        ("inventory", "layout"),
        ("refs",),
        ("assets",),
        ("codec",),
        ("",),
    ),
    "query": (
        ("local", "export"),
        ("procedures", "statements"),
        ("extract", "sql", "stream", "write"),
        ("options",),
        ("scan", "metadata_tables"),
        ("schema",),
        ("encode", "spark_types"),
        ("decode",),
    ),
    "serve": (
        ("app",),
        ("pages", "gateway"),
        ("data", "line_plot", "first_page", "assets"),
        ("views",),
        ("snippets", "log", "derived", "array_plot_config", "difference_plot", "positions", "quality"),
        ("requests", "compare", "chunkmap", "series", "array_plot"),
        ("windows",),
        ("documents",),
        ("versions",),
        ("guard", "work", "connections"),
        ("asgi",),
        ("settings",),
    ),
    "spark": (
        ("views",),
        ("source",),
        ("stream_sink",),
        ("batch_sink", "stream_source", "maintenance", "ingest_files"),
        ("executor",),
        ("run_sql",),
        ("run_statements",),
        ("shuffle_write",),
        ("scan_tables",),
        ("task_frames", "errors", "session"),
        ("progress", "worker", "java"),
        ("",),
    ),
    "storage": (
        ("external",),
        ("urls",),
        ("factories",),
        ("object_store", "redirect"),
        ("disk_cache", "local", "memory", "probe", "read_only"),
        ("base",),
        ("",),
    ),
    "virtual": (
        ("combine", "open"),
        ("parsers",),
        ("virtualizarr",),
        ("dataset",),
        ("values",),
        ("write",),
        ("codecs", "zarr_documents"),
        ("variables",),
        ("decoders", "sources", "zarr_metadata"),
        ("errors",),
        ("",),
    ),
}

# Foreign package -> the components that may import it; nothing in the package may import an empty one.
BORDERS: dict[str, frozenset[str]] = {
    "pyspark": frozenset({"spark"}),
    "obstore": frozenset({"storage"}),
    "opentelemetry": frozenset({"_internal.telemetry"}),
    "flatbuffers": frozenset(),
    "icechunk": frozenset(),
    "starlette": frozenset({"serve"}),
    "uvicorn": frozenset({"serve"}),
    "jinja2": frozenset({"serve"}),
}


def upward_imports(module: Module, known: Iterable[str]) -> Iterator[str]:
    """Return a sentence for each import that goes up, sideways across a border, or nowhere."""
    names = set(known)
    here = module.component
    if here not in FLOOR_OF:
        yield f"{module.name}: component {here!r} has no floor; give it one in FLOORS"
        return
    for imported in imports_of(module):
        target = _module_in_package(imported.target, names)
        if target is None or (there := component_of(target)) == here:
            continue
        if not here and not imported.at_run_time:
            continue  # the package loads its public names when they are used, from wherever they are
        where = f"{module.name}:{imported.line} imports {target}"
        if there not in FLOOR_OF:
            yield f"{where}, which has no floor"
        elif FLOOR_OF[there] < FLOOR_OF[here]:
            yield f"{where}, which lies above it"
        elif any({here, there} <= pair for pair in APART):
            yield f"{where}: {here} and {there} do not know each other"


def upward_imports_inside(module: Module, known: Iterable[str]) -> Iterator[str]:
    """Return a sentence for each import inside a package that goes neither down nor to its own folder."""
    package = module.component
    if package not in INSIDE or module.name == f"{PACKAGE}.{package}":
        return
    names = set(known)
    row_of = {part: row for row, parts in enumerate(INSIDE[package]) for part in parts}
    here = _part(module.name)
    if here not in row_of:
        yield f"{module.name}: {here!r} has no row; give it one in INSIDE"
        return
    for imported in imports_of(module):
        target = _module_in_package(imported.target, names)
        if target is None or component_of(target) != package or (there := _part(target)) == here:
            continue
        if there not in row_of or row_of[there] <= row_of[here]:
            yield f"{module.name}:{imported.line} imports {target}, which does not lie below it"


def _part(module_name: str) -> str:
    """`icefloe.query.sql.parse` -> `sql`; the package itself -> ``."""
    return module_name.split(".")[2] if module_name.count(".") > 1 else ""


def foreign_imports(module: Module) -> Iterator[str]:
    """Yield one sentence per import of a foreign package outside its border."""
    for imported in imports_of(module):
        package = imported.target.split(".")[0]
        if package in BORDERS and module.component not in BORDERS[package]:
            yield f"{module.name}:{imported.line} imports {package}"


def private_imports(module: Module) -> Iterator[str]:
    """Yield one sentence per import of a private name of another package."""
    if module.name == "icefloe._internal.private_imports":
        return
    for imported in imports_of(module):
        package, *inner = imported.target.split(".")
        if package in (PACKAGE, *sys.stdlib_module_names):
            continue
        is_submodule = imported.target.startswith("xarray.backends.") and inner[1].islower()
        is_core = package in ("zarr", "xarray") and inner[:1] == ["core"]
        if is_submodule or is_core or any(part.startswith("_") for part in inner):
            yield f"{module.name}:{imported.line} imports {imported.target}"


def import_cycle(modules: Iterable[Module]) -> list[str]:
    """Return the names along one cycle of run-time imports, or nothing."""
    modules = list(modules)
    names = {module.name for module in modules}
    edges = {
        module.name: {
            target
            for imported in imports_of(module)
            if imported.at_run_time and (target := _module_in_package(imported.target, names))
        }
        - {module.name}
        for module in modules
    }
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for target in sorted(edges[name]):
            if found := visit(target, [*trail, name]):
                return found
        done.add(name)
        return []

    for name in sorted(edges):
        if found := visit(name, []):
            return found
    return []


def uses_of_official_package(module: Module) -> Iterator[str]:
    """Imports of `icechunk` in a file that is neither a compat test nor a benchmark."""
    parts = module.name.split(".")
    if parts[0] == "benchmarks" or "compat" in parts or parts[-1].endswith("_compat"):
        return
    if OFFICIAL not in module.text:
        return  # most files: they need not be parsed
    for imported in imports_of(module):
        if imported.target.split(".")[0] == OFFICIAL:
            yield f"{module.name}:{imported.line} imports {OFFICIAL}"


def test_imports_point_down_only() -> None:
    names = [module.name for module in source_modules()]

    found = [problem for module in source_modules() for problem in upward_imports(module, names)]

    assert found == []


def test_imports_inside_a_package_point_down_only() -> None:
    names = [module.name for module in source_modules()]

    found = [problem for module in source_modules() for problem in upward_imports_inside(module, names)]

    assert found == []


def test_foreign_packages_are_imported_only_where_allowed() -> None:
    found = [problem for module in source_modules() for problem in foreign_imports(module)]

    assert found == []


def test_private_names_of_other_packages_are_imported_in_one_module() -> None:
    found = [problem for module in source_modules() for problem in private_imports(module)]

    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "from zarr.core import sync",
        "from xarray.backends import writers",
        "from click._compat import strip_ansi",
    ],
)
def test_import_of_a_private_name_is_detected(text: str) -> None:
    assert len(list(private_imports(parse("icefloe.xarray", text)))) == 1


def test_there_are_no_import_cycles() -> None:
    assert import_cycle(source_modules()) == []


def test_only_compat_tests_and_benchmarks_use_the_official_package() -> None:
    found = [problem for module in outside_modules() for problem in uses_of_official_package(module)]

    assert found == []


NAMES = ["icefloe", "icefloe.core.refs.base", "icefloe.format.v2", "icefloe.storage.base", "icefloe.store"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("icefloe.errors", "from icefloe.core import refs"),
        ("icefloe.errors", "def late():\n    import icefloe.store"),
        (
            "icefloe.core.refs.base",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import icefloe.store",
        ),
        ("icefloe.format.v2", "from icefloe.storage.base import Storage"),
        ("icefloe.storage.base", "from ..format import v2"),
        ("icefloe.core.refs.base", "from icefloe import Repository"),
        ("icefloe.core.refs.base", "import importlib\nimportlib.import_module('icefloe.store')"),
        ("icefloe.helpers", ""),
    ],
)
def test_upward_import_is_detected(name: str, text: str) -> None:
    assert len(list(upward_imports(parse(name, text), NAMES))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("icefloe.query.scan.plan", "from icefloe.query.sql import parse"),
        ("icefloe.query.sql.parse", "from icefloe.query.write import job"),
        ("icefloe.query.other", ""),
    ],
)
def test_upward_import_inside_a_package_is_detected(name: str, text: str) -> None:
    names = ["icefloe.query.scan.plan", "icefloe.query.sql.parse", "icefloe.query.write.job"]

    assert len(list(upward_imports_inside(parse(name, text), names))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("icefloe.store", "from icefloe.core.refs.base import advance\nimport numpy"),
        ("icefloe.format.v2", "from icefloe.format import v1"),
        ("icefloe", "from icefloe.store import IcechunkStore"),
    ],
)
def test_downward_import_is_allowed(name: str, text: str) -> None:
    assert list(upward_imports(parse(name, text), NAMES)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("icefloe.core.refs.base", "import pyspark.sql"),
        ("icefloe.core.refs.base", "from obstore.store import S3Store"),
        ("icefloe.format.v2", "import flatbuffers"),
        ("icefloe.spark.executor", "__import__('icechunk')"),
    ],
)
def test_forbidden_import_of_a_foreign_package_is_detected(name: str, text: str) -> None:
    assert len(list(foreign_imports(parse(name, text)))) == 1


def test_own_module_with_the_name_of_a_foreign_package_is_allowed() -> None:
    module = parse("icefloe.format.v2", "from icefloe.encoding import flatbuffers")

    assert list(foreign_imports(module)) == []


def test_import_cycle_is_detected() -> None:
    one = parse("icefloe.core.one", "from icefloe.core.two import b")
    two = parse("icefloe.core.two", "def f():\n    from icefloe.core import one")

    assert import_cycle([one, two]) == ["icefloe.core.one", "icefloe.core.two", "icefloe.core.one"]


def test_use_of_the_official_package_is_detected() -> None:
    assert list(uses_of_official_package(parse("tests.format.test_v2", "import icechunk")))
    assert not list(uses_of_official_package(parse("tests.compat.test_v2", "import icechunk")))


def _module_in_package(target: str, names: set[str]) -> str | None:
    """`icefloe.format.v2.decode` -> `icefloe.format.v2`; None for what is not ours."""
    if target.split(".")[0] != PACKAGE:
        return None
    while target not in names and target.count(".") > 1:
        target = target.rpartition(".")[0]
    if target not in names and target.count(".") == 1:
        # `icefloe.Repository`: a name of the package itself, unless a component is called so.
        return target if component_of(target) in FLOOR_OF else PACKAGE
    return target
