"""`python -m icefloe` is the command line."""

from icefloe.cli.app import run

run()
