"""`python -m icefloe` is the command line."""

from icefloe.cli.app import run

if __name__ == "__main__":  # and not a process that was started to help
    run()
