"""Run the command line with `python -m icefloe`."""

from icefloe.cli.main import run

if __name__ == "__main__":  # worker processes import this module under another name
    run()
