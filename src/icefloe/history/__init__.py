"""The history of a repository as public values: snapshots, ancestry, the ops log and versions."""
