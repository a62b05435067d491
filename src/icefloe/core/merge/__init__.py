"""Rebase, three-way merge, and everything else that combines two histories."""
