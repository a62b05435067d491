"""The commands, with one module per group of related commands. `icefloe.cli.main.SECTIONS` lists them."""
