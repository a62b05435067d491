"""Who sends the requests: what goes into the HTTP User-Agent beside icefloe's own name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icefloe.config.display import Tree, call, literal, qualified

_MAX_BYTES = 128
_CLIENT = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")
_COMMENT = re.compile(r"""[\x20-\x7e]*""")
_FORBIDDEN = set('()\\;="')


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attribution:
    """Which software, for which workload, on whose behalf; at most 128 bytes of printable ASCII each."""

    client: str | None = None
    """`name` or `name/version`, as in a User-Agent."""
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        if self.client is not None and (not _CLIENT.fullmatch(self.client) or len(self.client) > _MAX_BYTES):
            raise ValueError("client must be a product token, name or name/version, of at most 128 bytes")
        for name in ("workload", "principal"):
            text: str | None = getattr(self, name)
            if text is not None and (
                not _COMMENT.fullmatch(text) or len(text) > _MAX_BYTES or _FORBIDDEN & set(text)
            ):
                raise ValueError(f'{name} must be at most 128 bytes of ASCII without ( ) \\ ; = "')

    def user_agent(self, product: str) -> str:
        """The User-Agent: the client, then `product`, then workload and principal as a comment."""
        notes = [f"{n}={v}" for n, v in (("workload", self.workload), ("principal", self.principal)) if v]
        comment = [f"({'; '.join(notes)})"] if notes else []
        return " ".join([*([self.client] if self.client else []), product, *comment])

    def _fields(self) -> dict[str, str]:
        return {name: literal(getattr(self, name)) for name in ("client", "workload", "principal")}

    def __repr__(self) -> str:
        return call(qualified("", "Attribution"), self._fields())

    def __str__(self) -> str:
        return self._tree().as_text()

    def _repr_html_(self) -> str:
        return self._tree().as_html()

    def _tree(self) -> Tree:
        return Tree(qualified("", "Attribution"), tuple(self._fields().items()))
