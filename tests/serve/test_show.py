"""The page from Python: `icefloe.serve.show`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import icefloe
from tests.support.serve import sample_repository


def test_show_serves_the_repository_until_it_is_closed(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)

    page = icefloe.serve.show(repo)
    found = httpx.get(page.url, follow_redirects=True)
    page.close()
    page.close()

    assert found.status_code == 200
    assert str(tmp_path / "repo") in found.text
    assert "token" not in repr(page)
    assert page.url in page._repr_html_()
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url)


def test_show_keeps_the_authorization_of_the_repository(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)

    with icefloe.serve.show(repo) as page:
        token = page.url.partition("token=")[2]
        url = f"{page.url.partition('?')[0]}zarr/v1/virtual/c/0/0"
        found = httpx.get(url, headers={"Authorization": f"Bearer {token}"})

    assert found.status_code == 200
