"""The upkeep of a repository: expiring history, collecting what nothing needs, rewriting, counting."""
