"""The command line: `icefloe COMMAND REPO ...`. Text for people, `--json` for programs."""
