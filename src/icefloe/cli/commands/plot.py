"""The command that plots arrays in the terminal or to a file: plot."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icefloe._internal.printable import escape_control
from icefloe._internal.streams import get_colour_stream
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.commands.contents import find_array
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import (
    complete_path,
    isel_option,
    output_option,
    repo_argument,
    revision_option,
    sel_option,
)
from icefloe.repository import Repository

if TYPE_CHECKING:
    from icefloe.cli.plotting import Paint

_KINDS = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


@click.command()
@repo_argument
@click.argument("path", shell_complete=complete_path)
@revision_option
@isel_option
@sel_option
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plot to a .png, .svg, .pdf or .jpg file.",
)
@click.option(
    "--width",
    type=click.IntRange(min=20),
    help="The width of the plot in characters; the terminal width by default.",
)
@click.option("--no-coastlines", is_flag=True, help="Draw maps without coastlines.")
@authorize_option
@output_option
def plot(
    repo: Repository,
    path: str,
    revision: str,
    isel: dict[str, slice | int],
    sel: dict[str, Any],
    file: Path | None,
    width: int | None,
    no_coastlines: bool,
    out: CommandOutput,
) -> None:
    """Plot an array: one dimension as a curve, two as a map.

    PATH is the path of the array. If the array has more than two dimensions, the last two are plotted, at
    index 0 along all others. Use --isel and --sel to select other elements. Maps of latitude and longitude
    include coastlines (Natural Earth, 1:110 million). --json prints a summary of the values.

    \b
    icefloe plot data/repo t2m --sel time=2024-01-15
    icefloe plot data/repo t2m -r v1.0 --isel lat=90 --isel lon=0
    icefloe plot data/repo t2m --sel time=2024-01-01..2024-01-31 --isel lon=0
    """
    from icefloe.cli import plotting
    from icefloe.cli.slices import take

    if file is not None and file.suffix.lower() not in _KINDS:
        raise click.BadParameter(
            f"{file} has none of the supported extensions {', '.join(_KINDS)}", param_hint="--file"
        )
    snapshot = revisions.resolve(repo, revision)
    session = repo.readonly_session(snapshot_id=snapshot)
    drawn = take(session, find_array(session, path), isel, sel)
    about: dict[str, Any] = {**drawn.summary(), "snapshot": snapshot, "file": str(file) if file else None}
    if file is not None:
        plotting.as_file(drawn, file, coastlines=not no_coastlines)
        out.value(about, f"{drawn.title}: {escape_control(str(file))}")
    elif out.as_json:
        out.value(about)
    else:
        _print(drawn, width, not no_coastlines)


def _print(drawn: Any, width: int | None, coastlines: bool) -> None:
    from icefloe.cli.plotting import as_text

    paint = _paint()
    across = width or min(shutil.get_terminal_size().columns, 120)
    text = as_text(drawn, across, paint, coastlines=coastlines)
    click.echo(text, file=get_colour_stream(sys.stdout), color=paint is not None)


def _paint() -> Paint | None:
    """Return a function that colours characters, or None if the terminal has fewer than 256 colours."""
    if not sys.stdout.isatty():
        return None  # rich is slow to import
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    console = Console(file=sys.stdout)
    systems = {"256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
    if console.color_system not in systems or console.no_color:
        return None
    system = systems[console.color_system]

    def paint(character: str, colour: str | None, ground: str | None) -> str:
        return Style(color=colour, bgcolor=ground).render(character, color_system=system)

    return paint
