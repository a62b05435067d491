"""Commit the changes of a session as a new snapshot.

Branches are moved in `icefloe.core.refs`, where `check_base` detects a commit that lost a race. The session
then rebases its changes (`icefloe.core.merge.rebase`) and tries again.
"""
