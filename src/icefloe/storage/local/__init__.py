"""Storages in local folders."""
