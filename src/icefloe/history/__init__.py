"""The history of a repository as public values: snapshots, pages of ancestry, the ops log."""
