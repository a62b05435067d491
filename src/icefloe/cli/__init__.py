"""The command line, `icefloe COMMAND REPO ...`, with text output for people and `--json` for programs."""
