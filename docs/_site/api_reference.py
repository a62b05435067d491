"""Pages of the API reference: one per topic, with every public name on exactly one of them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from icefloe._internal.lazy import list_public_names

INDEX = "reference/api/index.md"
"""Path of the list of all names below `docs/`."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A page of the reference, and the modules whose public names belong on it."""

    slug: str
    title: str
    introduction: str
    modules: tuple[str, ...] = ()
    """Defining modules, or prefixes of them, of public names of `icefloe`."""
    package: str = "icefloe"
    """The package whose `__all__` is documented."""
    first: tuple[str, ...] = ()
    """The most important names, which begin the page."""

    @property
    def path(self) -> str:
        """Path of the page below `docs/`."""
        return f"reference/api/{self.slug}.md"


TOPICS = (
    Topic(
        "repository",
        "Repository",
        "A `Repository` opens sessions, moves branches and tags, and runs maintenance.",
        (
            "icefloe.repository",
            "icefloe.open_url",
            "icefloe.branch_checks",
            "icefloe.legacy",
            "icefloe.types",
        ),
        first=("Repository",),
    ),
    Topic(
        "session",
        "Sessions and stores",
        "A session is pinned to one snapshot; a writable session collects changes and commits them. Its `store` is a Zarr store.",
        ("icefloe.session", "icefloe.store", "icefloe.core"),
        first=("Session", "IcechunkStore"),
    ),
    Topic(
        "history",
        "History and differences",
        "Records about snapshots, differences between them, and the operations log.",
        ("icefloe.snapshots", "icefloe.ancestry_graph", "icefloe.ops", "icefloe.comparison"),
    ),
    Topic(
        "scan",
        "Scans",
        "`icefloe.scan` reads arrays as Arrow tables in this process: rows, aggregates, points and zones. Needs the extra `tables`.",
        ("icefloe.query",),
        first=("scan",),
    ),
    Topic(
        "conflicts",
        "Conflicts and merging",
        "Rebases and merges report conflicts as objects, and solvers resolve them.",
        ("icefloe.conflicts", "icefloe.feeds"),
    ),
    Topic(
        "storage",
        "Storage",
        "Functions that describe where a repository is stored, and settings for requests to the storage.",
        ("icefloe.storage",),
    ),
    Topic(
        "credentials",
        "Credentials",
        "Credentials with which requests to object stores are signed.",
        ("icefloe.credentials",),
    ),
    Topic(
        "configuration",
        "Configuration",
        "Settings that are stored in a repository, or passed when you open it.",
        ("icefloe.config",),
        first=("RepositoryConfig",),
    ),
    Topic(
        "maintenance",
        "Maintenance and integrity",
        "Policies and reports for retention, verification, repair and clones. The operations are methods of `Repository`.",
        ("icefloe.maintenance", "icefloe._internal.table"),
    ),
    Topic(
        "errors",
        "Exceptions",
        "Every error derives from `IcechunkError`. See [error kinds](../errors.md) for examples and usual causes.",
        ("icefloe.errors",),
        first=("IcechunkError", "ErrorKind"),
    ),
    Topic(
        "ingest",
        "Ingest and export",
        "Turn files into arrays, and arrays into files.",
        (
            "icefloe.pipeline",
            "icefloe.ingest",
            "icefloe.derive",
            "icefloe.export",
            "icefloe._internal.executor",
        ),
        first=("ingest_files", "derive_arrays"),
    ),
    Topic(
        "ingest-engine",
        "icefloe.ingest",
        "The ingest engine with explicit options.",
        package="icefloe.ingest",
    ),
    Topic("virtual", "icefloe.virtual", "References to chunks in existing files.", package="icefloe.virtual"),
    Topic(
        "spark",
        "icefloe.spark",
        "Ingest, query and write with Spark. Needs the extra `spark`.",
        package="icefloe.spark",
    ),
    Topic(
        "serve",
        "icefloe.serve",
        "A web page for a repository. Needs the extra `serve`.",
        package="icefloe.serve",
    ),
    Topic("feeds", "icefloe.feeds", "Events of a repository.", package="icefloe.feeds"),
    Topic("xarray", "icefloe.xarray", "Write xarray datasets.", package="icefloe.xarray"),
    Topic("dask", "icefloe.dask", "Write dask arrays.", package="icefloe.dask"),
    Topic("distributed", "icefloe.distributed", "Write from many processes.", package="icefloe.distributed"),
    Topic(
        "other",
        "Logging and compatibility",
        "Logs, telemetry, and using icefloe in place of `icechunk`.",
        ("icefloe._internal.logs", "icefloe.about", "icefloe.compatibility", "icefloe._version"),
    ),
)


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield path and Markdown of each page, and of the page that lists all names."""
    yield INDEX, _index()
    for topic in TOPICS:
        entries = "\n\n".join(f"::: {topic.package}.{name}" for name in names_of(topic))
        yield topic.path, f"# {topic.title}\n\n{topic.introduction}\n\n{entries}\n"


def names_of(topic: Topic) -> list[str]:
    """Return the public names on a page: the most important ones, then classes, then functions."""
    if topic.package != "icefloe":
        names = _public_names(topic.package)
    else:
        names = [name for name, page in _pages_of_names().items() if page == topic.slug]
    values = {name: getattr(importlib.import_module(topic.package), name) for name in names}
    others = sorted(
        set(values) - set(topic.first), key=lambda name: (not inspect.isclass(values[name]), name.lower())
    )
    return [*topic.first, *others]


def unplaced_names() -> list[str]:
    """Return public names of `icefloe` that belong to no topic."""
    return [name for name, page in _pages_of_names().items() if page is None]


def undocumented_names() -> list[str]:
    """Return public names, and public methods and properties of public classes, without a docstring."""
    missing: list[str] = []
    for topic in TOPICS:
        module = importlib.import_module(topic.package)
        for name in names_of(topic):
            missing += _undocumented(f"{topic.package}.{name}", getattr(module, name))
    return sorted(set(missing))


def _index() -> str:
    lines = [
        "# Python API\n",
        "Names that the official `icechunk` package has, too, take the same arguments. Each method `name` that does I/O has a "
        "counterpart `name_async` with the same arguments, to be awaited; it is not listed.\n",
    ]
    for topic in TOPICS:
        links = (f"[`{name}`][{topic.package}.{name}]" for name in names_of(topic))
        lines.append(f"## [{topic.title}]({topic.slug}.md)\n\n{topic.introduction}\n\n{' · '.join(links)}\n")
    return "\n".join(lines)


@cache
def _pages_of_names() -> dict[str, str | None]:
    return {name: _page_of(_defining_module(name)) for name in _public_names("icefloe")}


def _public_names(package: str) -> list[str]:
    module: Any = importlib.import_module(package)
    names = list_public_names(package, module.__file__) if package == "icefloe" else module.__all__
    return [name for name in names if not name.startswith("__")]


def _defining_module(name: str) -> str:
    """Return the module that defines a name, also for values such as type aliases that do not know it."""
    import icefloe

    value = getattr(icefloe, name)
    module = getattr(value, "__module__", None)
    if isinstance(module, str) and module.startswith("icefloe"):
        return module
    candidates = (module for topic in TOPICS for module in topic.modules)
    return next((each for each in candidates if name in vars(importlib.import_module(each))), "")


def _page_of(module: str) -> str | None:
    for topic in TOPICS:
        if any(
            module == each or (each != "icefloe" and module.startswith(f"{each}.")) for each in topic.modules
        ):
            return topic.slug
    return None


def _undocumented(path: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        if inspect.isroutine(value) and not value.__doc__:
            yield path
        return
    if not value.__doc__:
        yield path
    for name, member in vars(value).items():
        is_api = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
        if name.startswith("_") or name.endswith("_async") or not is_api:
            continue
        if not inspect.getdoc(getattr(value, name)):
            yield f"{path}.{name}"
