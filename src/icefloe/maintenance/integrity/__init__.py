"""Verify a repository, record checksums and repair damage."""
