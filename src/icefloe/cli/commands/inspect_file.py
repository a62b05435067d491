"""The command that lists the variables of files: inspect-file."""

from __future__ import annotations

from typing import Any, get_args

import click

from icefloe._internal.redaction import redact
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import complete_file, output_option
from icefloe.virtual import VirtualDataset, virtualize
from icefloe.virtual.parsers import Format

_COLUMNS = ("variable", "shape", "dtype", "chunks", "references", "codecs", "refused")


def _list_rows(dataset: VirtualDataset) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path, group in dataset.walk():
        prefix = f"{path}/" if path else ""
        for name, variable in group.variables.items():
            sizes = zip(variable.dimensions, variable.shape, strict=True)
            rows.append(
                {
                    "variable": prefix + name,
                    "shape": ", ".join(f"{dimension}: {size}" for dimension, size in sizes),
                    "dtype": str(variable.dtype),
                    "chunks": "x".join(map(str, variable.chunk_shape)),
                    "references": "loaded" if variable.loaded else len(variable.references),
                    "codecs": ", ".join(codec["name"] for codec in variable.codecs),
                    "refused": None,
                }
            )
        rows += [
            {**dict.fromkeys(_COLUMNS), "variable": prefix + each.variable, "refused": each.sentence}
            for each in group.refused
        ]
    return rows


@click.command("inspect-file")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_file)
@click.option(
    "--format",
    "format_",
    type=click.Choice(get_args(Format)),
    help="The file format; detected by default.",
)
@click.option("--group", help="The group to inspect; all by default.")
@click.option(
    "-r",
    "--revision",
    help="The version of an Icechunk repository to read: a branch, a tag or a snapshot id.",
)
@output_option
def inspect_file(
    files: tuple[str, ...], format_: Any, group: str | None, revision: str | None, out: CommandOutput
) -> None:
    """Show the variables that an ingest would find in files.

    Each FILE is a path or URL. For each variable, the command lists its shape, data type, chunks, references
    and codecs, or the reason why it cannot be virtualized.

    \b
    icefloe inspect-file data/2024-01.nc s3://bucket/2024-02.nc
    """
    found = []
    for number, file in enumerate(files):
        out.progress("files", number, len(files))
        rows = _list_rows(virtualize(file, format=format_, group=group, version=revision))
        found += [{"file": redact(file), **row} for row in rows]
    columns = _COLUMNS if len(files) == 1 and not out.as_json else ("file", *_COLUMNS)
    out.table(found, columns)
