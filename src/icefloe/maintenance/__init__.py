"""Maintenance: garbage collection, expiration, statistics, clones, upgrades, verification and repair."""
