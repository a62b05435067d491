"""`python -m icefloe` is the command line."""

from icefloe.cli.main import run

if __name__ == "__main__":  # and not a process that was started to help
    run()
