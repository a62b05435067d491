"""What a repository allows or forbids, switch by switch."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe.config.display import Shown, Tree, qualified


@dataclass(frozen=True, slots=True, repr=False)
class FeatureFlag(Shown):
    """Something a repository allows or forbids."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None
    """None where the default holds."""

    @property
    def enabled(self) -> bool:
        """Whether it is on, by setting or by default."""
        return self.default_enabled if self.setting is None else self.setting

    def tree(self) -> Tree:
        # docstring inherited
        names = ("id", "name", "default_enabled", "setting", "enabled")
        rows = tuple((name, str(getattr(self, name))) for name in names)
        return Tree(qualified("config", "FeatureFlag"), rows)
