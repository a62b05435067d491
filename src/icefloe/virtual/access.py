"""How files elsewhere are reached. References of one dataset may lead to several places."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import AnyCredential

Way: TypeAlias = tuple[AnyObjectStoreConfig | None, AnyCredential | None]
"""A store and a credential; None for what the scheme of a location implies."""
Reach: TypeAlias = Callable[[str], Way]
"""Gives the way to the file at a location."""


def by(store: AnyObjectStoreConfig | None, credential: AnyCredential | None) -> Reach:
    """One way to all files."""
    return lambda location: (store, credential)


def as_implied(location: str) -> Way:
    """The way that the scheme of a location implies."""
    return None, None
