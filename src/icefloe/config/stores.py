"""Configuration of virtual chunk containers and of the object stores behind them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from icefloe.config.display import Shown, Tree, call, format_literal, mask_secrets, qualify_name
from icefloe.config.fields import Choice, ConfigPart, Number, Simple, config_part, declare_setting


class ChecksumAlgorithm(Enum):
    """The checksum algorithm for writes to S3."""

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4

    def __int__(self) -> int:
        return int(self.value)


_CHECKSUM_NAMES = {
    ChecksumAlgorithm.Crc32: "crc32",
    ChecksumAlgorithm.Crc32c: "crc32c",
    ChecksumAlgorithm.Crc64Nvme: "crc64_nvme",
    ChecksumAlgorithm.Sha1: "sha1",
    ChecksumAlgorithm.Sha256: "sha256",
}


@config_part
class S3Options(ConfigPart):
    """The connection options of an S3 or S3-compatible object store.

    Parameters
    ----------
    region
        The region of the bucket.
    endpoint_url
        The endpoint URL of an S3-compatible service; None for Amazon S3.
    allow_http
        Allow unencrypted connections.
    anonymous
        Do not sign requests.
    force_path_style
        Put the bucket into the path of the URL instead of the host name.
    network_stream_timeout_seconds
        Fail a request if no data is received for this time; 0 for no limit.
    requester_pays
        Access requester-pays buckets.
    checksum_algorithm
        The checksum to send with writes.
    """

    module: ClassVar[str] = "storage"
    on_disk: ClassVar[tuple[str, ...]] = (
        "region",
        "endpoint_url",
        "anonymous",
        "allow_http",
        "force_path_style",
        "network_stream_timeout_seconds",
        "requester_pays",
        "checksum_algorithm",
    )

    region: str | None = declare_setting(Simple(str), default=None)
    endpoint_url: str | None = declare_setting(Simple(str), default=None)
    allow_http: bool = declare_setting(Simple(bool), default=False, initial=False)
    anonymous: bool = declare_setting(Simple(bool), default=False, initial=False)
    force_path_style: bool = declare_setting(Simple(bool), default=False, initial=False)
    network_stream_timeout_seconds: int | None = declare_setting(Number(32), default=None)
    requester_pays: bool = declare_setting(Simple(bool), default=False, initial=False)
    checksum_algorithm: ChecksumAlgorithm | None = declare_setting(
        Choice(ChecksumAlgorithm, _CHECKSUM_NAMES), default=None
    )


class _Store(Shown):
    """Base class of object store configurations, with their stored names, URL schemes and reprs."""

    tag: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def to_plain(self) -> Any:
        """Convert the store configuration to its stored form."""

    @abstractmethod
    def shown(self) -> dict[str, str]:
        """Return the fields for display, with secrets masked."""

    def tree(self) -> Tree:
        """Return the store configuration as a tree for display."""
        return Tree(qualify_name("config", type(self).__qualname__), tuple(self.shown().items()))

    def __repr__(self) -> str:
        return f"{qualify_name('config', type(self).__qualname__)}({', '.join(self.shown().values())})"


class _S3Family(_Store):
    options: S3Options

    def to_plain(self) -> Any:
        return {self.tag: self.options.to_plain()}

    def shown(self) -> dict[str, str]:
        return {"options": repr(self.options)}

    def tree(self) -> Tree:
        return Tree(qualify_name("config", type(self).__qualname__), self.options.tree().fields)


class _OptionsFamily(_Store):
    opts: Mapping[str, str] | None

    def to_plain(self) -> Any:
        return {self.tag: dict(self.opts or {})}

    def shown(self) -> dict[str, str]:
        return {"opts": mask_secrets(self.opts)}


class _StoreFamily(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Store)


class ObjectStoreConfig(metaclass=_StoreFamily):
    """The configuration of the object store behind a virtual chunk container. Use one of the variants."""

    @dataclass(repr=False)
    class InMemory(_Store):
        """An in-memory store, which cannot contain virtual chunks.

        It exists because stored configurations may contain it.
        """

        tag: ClassVar[str] = "in_memory"
        schemes: ClassVar[tuple[str, ...]] = ()

        def to_plain(self) -> Any:
            return self.tag

        def shown(self) -> dict[str, str]:
            return {}

    @dataclass(repr=False)
    class LocalFileSystem(_Store):
        """A store with local files, for a virtual chunk container."""

        tag: ClassVar[str] = "local_file_system"
        schemes: ClassVar[tuple[str, ...]] = ("file",)
        path: str

        def to_plain(self) -> Any:
            return {self.tag: str(self.path)}

        def shown(self) -> dict[str, str]:
            return {"path": format_literal(str(self.path))}

    @dataclass(repr=False)
    class S3Compatible(_S3Family):
        """An S3-compatible store outside AWS, for a virtual chunk container."""

        tag: ClassVar[str] = "s3_compatible"
        schemes: ClassVar[tuple[str, ...]] = ("s3",)
        options: S3Options

    @dataclass(repr=False)
    class S3(_S3Family):
        """An Amazon S3 store, for a virtual chunk container."""

        tag: ClassVar[str] = "s3"
        schemes: ClassVar[tuple[str, ...]] = ("s3",)
        options: S3Options

    @dataclass(repr=False)
    class Gcs(_OptionsFamily):
        """A Google Cloud Storage store, for a virtual chunk container."""

        tag: ClassVar[str] = "gcs"
        schemes: ClassVar[tuple[str, ...]] = ("gs", "gcs")
        opts: Mapping[str, str] | None = None

    @dataclass(repr=False)
    class Azure(_OptionsFamily):
        """An Azure Blob Storage store, for a virtual chunk container.

        The options include the account.
        """

        tag: ClassVar[str] = "azure"
        schemes: ClassVar[tuple[str, ...]] = ("az", "azure", "abfs")
        opts: Mapping[str, str] | None = None

    @dataclass(repr=False)
    class Tigris(_S3Family):
        """A Tigris store, for a virtual chunk container."""

        tag: ClassVar[str] = "tigris"
        schemes: ClassVar[tuple[str, ...]] = ("tigris", "s3")
        opts: S3Options

        @property
        def options(self) -> S3Options:  # type: ignore[override]
            """The S3 options, under the name that the S3 variants use."""
            return self.opts

    @dataclass(repr=False)
    class Http(_OptionsFamily):
        """A web server that supports range requests, as the store of a virtual chunk container."""

        tag: ClassVar[str] = "http"
        schemes: ClassVar[tuple[str, ...]] = ("http", "https")
        opts: Mapping[str, str] | None = None
        headers: Mapping[str, str] | None = None

        def to_plain(self) -> Any:
            headers = {"headers": dict(self.headers)} if self.headers else {}
            return {self.tag: {**(self.opts or {}), **headers}}

        def shown(self) -> dict[str, str]:
            return {"opts": mask_secrets(self.opts), "headers": mask_secrets(self.headers, all_values=True)}


AnyObjectStoreConfig: TypeAlias = (
    ObjectStoreConfig.InMemory
    | ObjectStoreConfig.LocalFileSystem
    | ObjectStoreConfig.S3
    | ObjectStoreConfig.S3Compatible
    | ObjectStoreConfig.Gcs
    | ObjectStoreConfig.Azure
    | ObjectStoreConfig.Tigris
    | ObjectStoreConfig.Http
)


def store_from_plain(plain: Any) -> AnyObjectStoreConfig:
    """Create a store configuration from its stored form; raise ValueError for an unknown type."""
    match plain:
        case "in_memory":
            return ObjectStoreConfig.InMemory()
        case {"local_file_system": str(path)}:
            return ObjectStoreConfig.LocalFileSystem(path)
        case {"s3": Mapping() as options}:
            return ObjectStoreConfig.S3(S3Options.from_plain(options))
        case {"s3_compatible": Mapping() as options}:
            return ObjectStoreConfig.S3Compatible(S3Options.from_plain(options))
        case {"tigris": Mapping() as options}:
            return ObjectStoreConfig.Tigris(S3Options.from_plain(options))
        case {"gcs": Mapping() as opts}:
            return ObjectStoreConfig.Gcs(_to_strings(opts))
        case {"azure": Mapping() as opts}:
            return ObjectStoreConfig.Azure(_to_strings(opts))
        case {"http": Mapping() as opts}:
            headers = opts.get("headers")
            if headers is not None and not isinstance(headers, Mapping):
                raise TypeError("the headers of an HTTP store must be a mapping")
            rest = {key: value for key, value in opts.items() if key != "headers"}
            return ObjectStoreConfig.Http(
                _to_strings(rest), None if headers is None else _to_strings(headers)
            )
    kind = next(iter(plain)) if isinstance(plain, Mapping) and plain else plain
    raise ValueError(f"unknown object store {kind!r}")


@dataclass(repr=False)
class VirtualChunkContainer(Shown):
    """A virtual chunk container, which maps a URL prefix of virtual chunk locations to an object store.

    Parameters
    ----------
    url_prefix
        The prefix, which ends in `/`.
    store
        The type and the options of the store.
    name
        A name for relative locations, `vcc://name/path`.
    """

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = None

    def check(self) -> None:
        """Check that the prefix, name and store of the container are consistent.

        Raises
        ------
        ValueError
            If they are inconsistent.
        """
        if not self.url_prefix.endswith("/"):
            raise ValueError("VirtualChunkContainer url_prefix must end in a / character")
        if self.name is not None and (not self.name or "/" in self.name):
            raise ValueError("VirtualChunkContainer name must be non-empty and not contain '/'")
        url = urlsplit(self.url_prefix)
        if not url.scheme:
            raise ValueError(f"VirtualChunkContainer url_prefix {self.url_prefix!r} is not an absolute url")
        if url.scheme not in self.store.schemes:
            raise ValueError(f"Invalid url prefix scheme ({url.scheme}) for this object store config")
        if url.scheme == "file":
            if url.path in ("", "/") and not url.netloc:
                raise ValueError("Url prefix for file:// containers must include a path")
        elif not url.netloc:
            raise ValueError(f"Url prefix for {url.scheme}:// containers must include a host")

    def to_plain(self) -> dict[str, Any]:
        """Convert the container to its stored form.

        Returns
        -------
        dict
            The stored form.
        """
        return {"name": self.name, "url_prefix": self.url_prefix, "store": self.store.to_plain()}

    @classmethod
    def from_plain(cls, plain: Any) -> VirtualChunkContainer:
        """Create a virtual chunk container from its stored form.

        Parameters
        ----------
        plain
            The stored form.

        Returns
        -------
        VirtualChunkContainer
            The container.

        Raises
        ------
        ValueError
            If this release does not understand the stored form.
        """
        match plain:
            case {"url_prefix": str(prefix), "store": store}:
                return cls(prefix, store_from_plain(store), plain.get("name"))
        raise ValueError("a virtual chunk container needs a url_prefix and a store")

    def tree(self) -> Tree:
        """Return the container and its store as a tree for display.

        Returns
        -------
        Tree
            The name of the class and its fields.
        """
        title = qualify_name("virtual", "VirtualChunkContainer")
        rows = (("name", format_literal(self.name)), ("url_prefix", format_literal(self.url_prefix)))
        return Tree(title, (*rows, ("store", self.store.tree())))

    def __repr__(self) -> str:
        shown = {
            "name": format_literal(self.name),
            "url_prefix": format_literal(self.url_prefix),
            "store": repr(self.store),
        }
        return call(qualify_name("virtual", "VirtualChunkContainer"), shown)


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    anonymous: bool = False,
    s3_compatible: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
) -> ObjectStoreConfig.S3Compatible | ObjectStoreConfig.S3:
    """Configure an S3 store for a virtual chunk container.

    Parameters
    ----------
    region
        The region of the bucket.
    endpoint_url
        The endpoint URL of an S3-compatible service; None for Amazon S3.
    allow_http
        Allow unencrypted connections.
    anonymous
        Do not sign requests.
    s3_compatible
        True if the store is not Amazon S3 itself.
    force_path_style
        Put the bucket into the path of the URL instead of the host name.
    network_stream_timeout_seconds
        Fail a request if no data is received for this time; 0 for no limit.
    requester_pays
        Access requester-pays buckets.
    checksum_algorithm
        The checksum to send with writes.

    Returns
    -------
    ObjectStoreConfig.S3 or ObjectStoreConfig.S3Compatible
        The configuration of the store.
    """
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    return ObjectStoreConfig.S3Compatible(options) if s3_compatible else ObjectStoreConfig.S3(options)


def gcs_store(opts: dict[str, str] | None = None) -> ObjectStoreConfig.Gcs:
    """Configure a Google Cloud Storage store for a virtual chunk container.

    Parameters
    ----------
    opts
        Client options, named as in object_store's GoogleConfigKey.

    Returns
    -------
    ObjectStoreConfig.Gcs
        The configuration of the store.
    """
    return ObjectStoreConfig.Gcs(opts)


def azure_store(*, account: str, config: dict[str, str] | None = None) -> ObjectStoreConfig.Azure:
    """Configure an Azure Blob Storage store for a virtual chunk container.

    Parameters
    ----------
    account
        The name of the storage account.
    config
        Client options, named as in object_store's AzureConfigKey.

    Returns
    -------
    ObjectStoreConfig.Azure
        The configuration of the store.
    """
    return ObjectStoreConfig.Azure({"account": account, **(config or {})})


def http_store(
    opts: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> ObjectStoreConfig.Http:
    """Configure a web server as the store of a virtual chunk container.

    Parameters
    ----------
    opts
        Client options, named as in object_store's ClientConfigKey.
    headers
        Headers to send with every request.

    Returns
    -------
    ObjectStoreConfig.Http
        The configuration of the store.
    """
    return ObjectStoreConfig.Http(opts, headers)


def local_filesystem_store(path: str) -> ObjectStoreConfig.LocalFileSystem:
    """Configure a local folder as the store of a virtual chunk container.

    Parameters
    ----------
    path
        The folder.

    Returns
    -------
    ObjectStoreConfig.LocalFileSystem
        The configuration of the store.
    """
    return ObjectStoreConfig.LocalFileSystem(path)


def _to_strings(plain: Mapping[Any, Any]) -> dict[str, str]:
    if not all(isinstance(item, str) for pair in plain.items() for item in pair):
        raise TypeError("store options must be strings")
    return dict(plain)
