"""Operational data feeds: concurrent appends to the same arrays, and events for programs that wait for new
data.
"""

from icefloe.feeds.events import Event as Event
from icefloe.feeds.events import watch as watch

__all__ = ["Event", "watch"]
