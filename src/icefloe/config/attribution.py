"""Attribution of requests through the HTTP User-Agent header."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icefloe.config.display import Shown, Tree, call, format_literal, qualify_name

_MAX_BYTES = 128
_CLIENT = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")
_FORBIDDEN = re.compile(r'[^\x20-\x7e]|[()\\;="]')


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attribution(Shown):
    """The attribution of requests: the client software that sends them, its workload, and the principal it
    acts for.

    Each field has at most 128 characters of printable ASCII.
    """

    client: str | None = None
    """The client software, as `name` or `name/version`."""
    workload: str | None = None
    """The job or service that sends the requests."""
    principal: str | None = None
    """The user or account on whose behalf requests are sent."""

    def __post_init__(self) -> None:
        given = ((name, getattr(self, name)) for name in ("client", "workload", "principal"))
        for name, text in given:
            if text is not None:
                _check(name, text)

    def user_agent(self, product: str) -> str:
        """Return the User-Agent header: the client, then `product`, then the workload and principal as a
        comment.

        Parameters
        ----------
        product
            The name and version of icefloe.

        Returns
        -------
        str
            The value of the HTTP header.
        """
        notes = [f"{n}={v}" for n, v in (("workload", self.workload), ("principal", self.principal)) if v]
        comment = [f"({'; '.join(notes)})"] if notes else []
        return " ".join([*([self.client] if self.client else []), product, *comment])

    def _list_fields(self) -> dict[str, str]:
        return {name: format_literal(getattr(self, name)) for name in ("client", "workload", "principal")}

    def __repr__(self) -> str:
        return call(qualify_name("", "Attribution"), self._list_fields())

    def tree(self) -> Tree:
        # docstring inherited
        return Tree(qualify_name("", "Attribution"), tuple(self._list_fields().items()))


def _check(name: str, text: str) -> None:
    if len(text) > _MAX_BYTES:
        raise ValueError(f"attribution `{name}` is longer than {_MAX_BYTES} bytes")
    if name == "client":
        if not _CLIENT.fullmatch(text):
            raise ValueError(
                f"attribution `client` must be `name` or `name/version` in token characters, not {text!r}"
            )
    elif found := _FORBIDDEN.search(text):
        raise ValueError(
            f"attribution `{name}` contains the forbidden character {found[0]!r}; it takes printable ASCII "
            'without ( ) \\ ; = "'
        )
