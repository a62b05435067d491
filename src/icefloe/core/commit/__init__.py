"""Committing: turn the changes of a session into a new snapshot.

Branches move in `icefloe.core.refs`; a commit that lost a race is detected by `check_base` there.
"""
