"""Rebase, three-way merge and other operations that combine two histories."""
