"""First stage: find the sources that the user names."""
