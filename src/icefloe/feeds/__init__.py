"""Operational feeds: writers that append to the same arrays, and events for those who wait for them."""

from icefloe.feeds.events import Event as Event
from icefloe.feeds.events import watch as watch

__all__ = ["Event", "watch"]
