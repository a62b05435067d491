"""Commit the changes of a session as a new snapshot.

Branches are moved in `icefloe.core.refs`, where `check_base` detects commits that lost a race.
"""
