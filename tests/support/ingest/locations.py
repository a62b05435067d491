"""Buckets of real servers with files in them, for ingests from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icefloe import Storage, storage_from_url
from icefloe.storage.external.access import get_access
from tests.support.servers import azurite, gcs

BUCKET = "archive"
SECRET = "hunter2-secret-access-key"


@dataclass(frozen=True)
class Place:
    """A bucket, and the options that open it."""

    url: str
    options: Mapping[str, Any] = field(repr=False)

    def put(self, name: str, file: Path) -> str:
        """Copy a file into the bucket; its URL."""
        folder, _, last = name.rpartition("/")
        storage_from_url(f"{self.url}/{folder}", **self.options).put(last, file.read_bytes())
        return f"{self.url}/{name}"

    def storage(self, prefix: str) -> Storage:
        """Return a storage in the bucket."""
        return storage_from_url(f"{self.url}/{prefix}", **self.options)

    def credential(self) -> Any:
        """What opens virtual chunks in the bucket."""
        return get_access(self.url, self.options).credential


def s3_place(endpoint: str, **changed: Any) -> Place:
    """Return a bucket of an S3 server."""
    options = {
        "endpoint_url": endpoint,
        "region": "us-east-1",
        "allow_http": "true",
        "force_path_style": "true",
        "access_key_id": "access",
        "secret_access_key": SECRET,
    }
    return Place(f"s3://{BUCKET}", {**options, **changed})


def azure_place(endpoint: str) -> Place:
    """Return a container of the Azure emulator."""
    config = {"azure_storage_endpoint": endpoint, "allow_http": "true"}
    return Place(f"az://{BUCKET}", {"account": azurite.ACCOUNT, "access_key": azurite.KEY, "config": config})


def gcs_place(endpoint: str) -> Place:
    """Return a bucket of a Google Cloud Storage server."""
    config = {"google_base_url": endpoint, "allow_http": "true"}
    return Place(f"gs://{BUCKET}", {"bearer_token": gcs.TOKEN, "config": config})
