"""Reading and upgrading of repositories in formats before version 1."""
