"""Feature flags, which allow or forbid operations on a repository."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe.config.display import Shown, Tree, qualify_name


@dataclass(frozen=True, slots=True, repr=False)
class FeatureFlag(Shown):
    """A feature flag, which allows or forbids an operation on a repository."""

    id: int
    """The number of the flag."""
    name: str
    """The name of the flag."""
    default_enabled: bool
    """True if the operation is allowed by default."""
    setting: bool | None
    """The explicitly set value; None if the default applies."""

    @property
    def enabled(self) -> bool:
        """True if the operation is allowed, either explicitly or by default."""
        return self.default_enabled if self.setting is None else self.setting

    def tree(self) -> Tree:
        # docstring inherited
        names = ("id", "name", "default_enabled", "setting", "enabled")
        rows = tuple((name, str(getattr(self, name))) for name in names)
        return Tree(qualify_name("config", "FeatureFlag"), rows)
