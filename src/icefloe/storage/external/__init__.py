"""Files outside the repository: access, byte ranges and versions."""
