"""The commands, one module per group of related commands. `SECTIONS` in `icefloe.cli.main` lists them."""
