"""The command that prints shell completion scripts: completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    icefloe completion bash >> ~/.bashrc
    icefloe completion zsh >> ~/.zshrc
    icefloe completion fish > ~/.config/fish/completions/icefloe.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"the installed release of click does not support {shell}; upgrade click")
    click.echo(
        kind(click.get_current_context().find_root().command, {}, "icefloe", "_ICEFLOE_COMPLETE").source()
    )
