"""The current versions of ingested sources are looked up, in folders, buckets and on web servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from icefloe.ingest.discover import known_sources
from icefloe.ingest.discover.known_sources import look_up_versions
from icefloe.ingest.discover.sources import find_sources
from tests.support.servers.files import file_server
from tests.support.servers.moto import make_bucket


@pytest.mark.parametrize("listed_from", [1, 50])
def test_objects_are_looked_up_one_by_one_or_in_a_listing(
    s3_server: str, monkeypatch: pytest.MonkeyPatch, listed_from: int
) -> None:
    monkeypatch.setattr(known_sources, "_LISTED_FROM", listed_from)
    bucket_name = f"known{listed_from}"
    make_bucket(s3_server, bucket_name)
    keys = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
    config: Any = {**keys, "endpoint": s3_server, "virtual_hosted_style_request": "false"}
    bucket = S3Store(bucket_name, config=config, client_options={"allow_http": True})
    names = ["a.nc", "b c.nc", "50%.nc", "below/d.nc"]
    for name in names:
        obstore.put(bucket, f"data/{name}", b"one")
    options = {**keys, "endpoint_url": s3_server, "allow_http": True, "force_path_style": True}
    sources = find_sources(f"s3://{bucket_name}/data/", options)
    obstore.put(bucket, "data/b c.nc", b"three")
    obstore.delete(bucket, "data/50%.nc")

    found = look_up_versions(sources, options)

    state = {}
    for each in sources:
        now = found[each.url]
        state[each.url.rpartition("/")[2]] = now and now.is_same(each.version)
    assert state == {"50%25.nc": None, "a.nc": True, "b%20c.nc": False, "d.nc": True}


def test_files_on_a_web_server_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(b"one")
    (tmp_path / "b.nc").write_bytes(b"one")
    with file_server(tmp_path) as url:
        sources = find_sources([f"{url}/a.nc", f"{url}/b.nc"])
        (tmp_path / "b.nc").unlink()

        found = look_up_versions(sources, {})

    assert found == {f"{url}/a.nc": sources[0].version, f"{url}/b.nc": None}
    assert look_up_versions(sources, {}) == {}  # the server is gone
