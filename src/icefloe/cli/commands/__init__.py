"""One module per group of commands. A new command is listed in `SECTIONS` in `icefloe.cli.main`."""
