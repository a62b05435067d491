"""From the changes of a session to a new snapshot."""
