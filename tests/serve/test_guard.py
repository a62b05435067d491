"""Access control by host, method, token and origin, and the headers of every response."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from icefloe import Repository
from icefloe.serve.guard import CONTENT_SECURITY_POLICY
from tests.support.serve import sample_repository, serving

TOKEN = "a-token-of-this-test"
URLS = ["/", "/zarr/v1/zarr.json", "/zarr/v1/native/c/0/0", "/icechunk/repo", "/nothing"]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return sample_repository(tmp_path_factory.mktemp("guard"))


@pytest.fixture(scope="module")
def open_server(repo: Repository) -> Iterator[httpx.Client]:
    with serving(repo) as client:
        yield client


@pytest.fixture(scope="module")
def server(repo: Repository) -> Iterator[httpx.Client]:
    with serving(repo, token=TOKEN) as client:
        yield client


@pytest.fixture(autouse=True)
def _forget_cookies(server: httpx.Client) -> None:
    server.cookies.clear()


@pytest.mark.parametrize("url", URLS)
def test_nothing_is_served_without_the_token(server: httpx.Client, url: str) -> None:
    found = server.get(url)

    assert found.status_code == 401
    assert TOKEN not in found.text
    assert found.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", ""])
def test_wrong_token_is_rejected(server: httpx.Client, value: str) -> None:
    assert server.get("/", headers={"Authorization": value}).status_code == 401


@pytest.mark.parametrize("url", ["/", "/zarr/v1/zarr.json"])
def test_clients_send_the_token_as_a_header(server: httpx.Client, url: str) -> None:
    assert server.get(url, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_token_in_url_becomes_a_cookie(server: httpx.Client) -> None:
    first = server.get(f"/?token={TOKEN}&a=1")

    assert first.status_code == 303
    assert first.headers["location"] == "/?a=1"
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=Strict" in first.headers["set-cookie"]
    assert server.get(first.headers["location"]).status_code == 200


def test_redirect_after_a_token_stays_on_the_server(server: httpx.Client) -> None:
    request = server.build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=f"//evil.example/?token={TOKEN}".encode())

    assert server.send(request).headers["location"] == "/evil.example/"


def test_wrong_token_in_the_url_is_rejected(server: httpx.Client) -> None:
    assert server.get("/?token=wrong").status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "10.0.0.1"]
)
@pytest.mark.parametrize("url", URLS)
def test_other_host_names_are_rejected(open_server: httpx.Client, host: str, url: str) -> None:
    """A name that an attacker's DNS server points at this machine must not read anything."""
    assert open_server.get(url, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8000", "[::1]:9", "localhost."])
def test_local_host_names_are_admitted(open_server: httpx.Client, host: str) -> None:
    assert open_server.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("url", URLS)
def test_only_read_methods_are_allowed(open_server: httpx.Client, method: str, url: str) -> None:
    found = open_server.request(method, url)

    assert found.status_code == 405
    assert found.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("url", URLS)
def test_every_response_has_the_security_headers(
    open_server: httpx.Client, server: httpx.Client, url: str
) -> None:
    for found in (
        open_server.get(url),
        open_server.post(url),
        open_server.get(url, headers={"Host": "evil.example"}),
        server.get(url),
    ):
        assert found.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in found.headers
        assert "server" not in found.headers


def test_security_policy_forbids_eval_and_inline_code() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none';")


def test_allowed_origin_can_only_read_the_gateway(repo: Repository) -> None:
    origin = {"Origin": "https://viewer.example"}
    with serving(repo, token=TOKEN, cors=("https://viewer.example",)) as client:
        allowed = client.get("/zarr/v1/zarr.json", headers={**origin, "Authorization": f"Bearer {TOKEN}"})
        preflight = client.options(
            "/zarr/v1/zarr.json", headers={**origin, "Access-Control-Request-Method": "GET"}
        )
        other = client.get("/zarr/v1/zarr.json", headers={"Origin": "https://other.example"})
        page = client.get("/", headers={**origin, "Authorization": f"Bearer {TOKEN}"})

    assert allowed.headers["access-control-allow-origin"] == "https://viewer.example"
    assert "ETag" in allowed.headers["access-control-expose-headers"]
    assert preflight.status_code == 204
    assert "Range" in preflight.headers["access-control-allow-headers"]
    for found in (allowed, preflight, other, page):
        assert "access-control-allow-credentials" not in found.headers
    for found in (other, page):
        assert "access-control-allow-origin" not in found.headers


def test_all_origins_can_read_if_the_user_allows_it(repo: Repository) -> None:
    with serving(repo, cors=("*",)) as client:
        found = client.get("/zarr/v1/zarr.json", headers={"Origin": "https://viewer.example"})

    assert found.headers["access-control-allow-origin"] == "*"


def test_wildcard_address_rejects_foreign_host_names(repo: Repository) -> None:
    with serving(repo, host="0.0.0.0", token=TOKEN) as client:
        statuses = [
            client.get(f"http://127.0.0.1:{client.base_url.port}/", headers={"Host": host}).status_code
            for host in ("192.0.2.7:80", "evil.example")
        ]

    assert statuses == [401, 421]
