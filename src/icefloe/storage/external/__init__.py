"""Files outside the repository: credentials, byte ranges and their versions."""
