"""Export the rows of a table as an Iceberg table.

Tasks write data files to the location of the Iceberg table, and the driver adds all of them in one
transaction. Readers of the table see either all rows or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from icefloe._internal.executor import Executor, Progress
from icefloe._internal.extras import format_install_command
from icefloe._internal.redaction import redact
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    Hint,
    IcechunkError,
    InvalidInputError,
    StorageError,
)
from icefloe.query.export.parquet import (
    DATE_PARTS,
    DataFile,
    Partitioning,
    PartitionTerm,
    TableExport,
    TableExportReport,
    open_target,
    plan_export,
    write_files,
)
from icefloe.session import Session
from icefloe.storage.base import Storage
from icefloe.storage.urls import storage_from_url

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.table import Transaction
except ImportError as cause:
    raise ImportError(
        f"export to Iceberg requires pyiceberg: {format_install_command('pyiceberg')}"
    ) from cause

_SQLITE: Final = re.compile(r"sqlite:///(.+)")
_NAME: Final = re.compile(r"[^.\s]+(\.[^.\s]+)+")
_DATA: Final = "data"
_FILE: Final = "file://"
_CATALOG: Final = "default"
"""The name given to a catalog that is specified only by URI, as in pyiceberg."""


def export_iceberg(
    session: Session,
    table: str,
    *,
    catalog: str | Catalog,
    catalog_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    group: str = "/",
    variables: Iterable[str] | None = None,
    isel: Mapping[str, Any] | None = None,
    sel: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    overwrite: bool = False,
    dry_run: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> TableExportReport:
    """Export the variables of a group as an Iceberg table, in one Iceberg commit.

    The table has one row per cell, with a column per coordinate and per variable. Values are decoded, and
    missing values are null. The id of the exported snapshot is stored in the summary of the Iceberg snapshot,
    as `icefloe.snapshot-id`.

    Parameters
    ----------
    session
        The session to read.
    table
        The name of the table including its namespace, such as `weather.t2m`. The namespace is created if
        necessary.
    catalog
        A pyiceberg catalog, the name of a catalog in the pyiceberg configuration, or a catalog URI, such as
        `sqlite:////data/catalog.db` or `https://catalog.example.org`. The tables of a SQLite catalog are
        stored next to it, in the folder `warehouse`, unless `catalog_options` names another warehouse.
    catalog_options
        Catalog properties, such as `warehouse` or `s3.endpoint`. A catalog given by URI is named `default`
        unless the property `name` is set. SQL catalogs store tables under this name.
    storage_options
        Storage options for the table location, as for `storage_from_url`.
    group, variables, isel, sel
        The cells to export, as in `export_parquet`.
    partition_by
        Coordinates by which to partition a new table, such as `lat`, or date parts such as `month(time)`.
    overwrite
        Replace the rows of an existing table. Older Iceberg snapshots keep the previous rows.
    dry_run
        Only report what would be written.
    executor
        Runs the tasks that write data files; by default a thread pool in this process.
    progress
        Called with a label, the number of completed tasks, and the total number of tasks.

    Returns
    -------
    TableExportReport
        The numbers of rows, files and bytes.

    Raises
    ------
    AlreadyExistsError
        The table exists, and `overwrite` is not set.
    InvalidInputError
        The variables do not form one table, a column type has no Iceberg equivalent, or the catalog cannot be
        opened.
    ConflictError
        Another writer changed the table at the same time. In that case, nothing is written.
    """
    if not _NAME.fullmatch(table):
        raise InvalidInputError(
            f"{table} is not the name of an Iceberg table: expected a namespace and a name, such as"
            " weather.t2m",
            kind=ErrorKind.NOT_ALLOWED,
        )
    job = plan_export(session, group, variables, isel, sel, partition_by)
    job = replace(job, schema=_convert_types(job.schema))
    with _open_catalog(catalog, catalog_options or {}) as opened:
        with _translate_errors(catalog):
            stored = _find_table(opened, table)
        if stored is not None and not overwrite:
            raise AlreadyExistsError(
                f"table {table} already exists; choose another name", kind=ErrorKind.NOT_ALLOWED
            ).with_hint(Hint("or replace its rows with {overwrite}", overwrite=True))
        if stored is not None:
            _check_columns(table, schema_to_pyarrow(stored.schema()), job.schema)
            job = replace(job, terms=_match_partitions(table, stored, job.terms))
        if dry_run:
            return job.summarize()
        with _translate_errors(catalog):
            changes = _begin(opened, table, stored, job)
        location = f"{changes.table_metadata.location}/{_DATA}"
        target = _open_location(location, storage_options or {})
        target.prepare_for_creation()
        with write_files(job, target, executor, progress) as files, _translate_errors(catalog):
            if stored is not None:
                changes.delete(AlwaysTrue())
            _add_files(changes, location, files, session.snapshot_id)
            changes.commit_transaction()
    return job.summarize(files)


@contextmanager
def _open_catalog(catalog: str | Catalog, options: Mapping[str, str]) -> Iterator[Catalog]:
    """Open a catalog by name or URI, and close it afterwards. A catalog object passed by the caller stays
    open."""
    if not isinstance(catalog, str):
        yield catalog
        return
    with _translate_errors(catalog):
        opened = _load_catalog(catalog, options)
    with closing(opened):
        yield opened


def _begin(catalog: Catalog, name: str, stored: Any, job: TableExport) -> Transaction:
    """Begin a transaction that creates the Iceberg table or replaces its rows."""
    if stored is not None:
        changes: Transaction = stored.transaction()
        return changes
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    changes = catalog.create_table_transaction(name, job.schema)
    _partition(changes, job)
    return changes


def _load_catalog(catalog: str, options: Mapping[str, str]) -> Catalog:
    if "://" not in catalog:
        return load_catalog(catalog, **options)
    properties = {"uri": catalog, **options}
    found = _SQLITE.fullmatch(catalog)
    if found is not None and "warehouse" not in properties:
        properties["warehouse"] = f"{_FILE}{Path(found[1]).absolute().parent / 'warehouse'}"
    return load_catalog(properties.pop("name", _CATALOG), **properties)


def _find_table(catalog: Catalog, name: str) -> Any:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _convert_types(schema: pa.Schema) -> pa.Schema:
    """Cast columns whose types Iceberg does not support to supported types."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_duration(kind):
            raise InvalidInputError(
                f"Iceberg has no type for the time differences of {field.name}; export other variables",
                kind=ErrorKind.NOT_ALLOWED,
            )
        fields.append(field.with_type(pa.int32()) if kind in (pa.int8(), pa.int16()) else field)
    return pa.schema(fields)


def _check_columns(table: str, stored: pa.Schema, mine: pa.Schema) -> None:
    """Raise an error if the columns of the export differ from the columns of the existing table."""
    if set(stored.names) != set(mine.names):
        raise InvalidInputError(
            f"the table {table} has the columns {', '.join(stored.names)}, and the export has "
            f"{', '.join(mine.names)}; choose another table",
            kind=ErrorKind.NOT_ALLOWED,
        )


def _match_partitions(table: str, stored: Any, wanted: Partitioning) -> Partitioning:
    """Return the partition terms of an existing table. Raise an error if other terms were requested."""
    names = {field.field_id: field.name for field in stored.schema().fields}
    fields = stored.spec().fields
    parts = ["" if str(field.transform) == "identity" else str(field.transform) for field in fields]
    columns = [names[field.source_id] for field in fields]
    found = tuple(PartitionTerm(column, part) for column, part in zip(columns, parts, strict=True))
    if wanted not in ((), found) or not set(parts) <= {"", *DATE_PARTS}:
        layout = ", ".join(f"{f.transform}({name})" for f, name in zip(fields, columns, strict=True))
        raise InvalidInputError(
            f"the table {table} is partitioned by {layout or 'nothing'}, which differs from the export; "
            "choose another table",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return found


def _partition(changes: Transaction, job: TableExport) -> None:
    if job.terms:
        with changes.update_spec() as spec:
            for term in job.terms:
                spec.add_field(term.column, term.part or "identity", term.name)


def _open_location(location: str, options: Mapping[str, Any]) -> Storage:
    # Unlike a URL, a location in Iceberg is not percent-encoded.
    return open_target(storage_from_url(location.removeprefix(_FILE), **options))


def _add_files(changes: Transaction, location: str, files: Sequence[DataFile], snapshot_id: str) -> None:
    if files:
        paths = [f"{location}/{file.path}" for file in files]
        about = {"icefloe.snapshot-id": snapshot_id}
        changes.add_files(paths, snapshot_properties=about, check_duplicate_files=False)


@contextmanager
def _translate_errors(catalog: str | Catalog) -> Iterator[None]:
    """Convert errors from pyiceberg and its catalogs to icefloe errors."""
    try:
        yield
    except IcechunkError:
        raise
    except (CommitFailedException, ValidationException) as error:
        raise ConflictError(
            message="another writer changed the Iceberg table, and nothing was exported; repeat the export: "
            f"{redact(str(error))}"
        ) from error
    except Exception as error:  # each catalog raises the exceptions of its own client library
        name = catalog if isinstance(catalog, str) else catalog.name
        raise StorageError(
            f"the Iceberg catalog {redact(str(name))} failed: {type(error).__name__}: {redact(str(error))}",
            kind=ErrorKind.STORAGE_OTHER,
        ) from error
