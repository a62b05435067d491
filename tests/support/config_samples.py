"""A config with everything set, and what the official library writes for it."""

from __future__ import annotations

from typing import Any

import yaml

from icefloe import config as c

MP, MS, D = c.ManifestPreloadCondition, c.ManifestSplitCondition, c.ManifestSplitDimCondition

# What icechunk 2.3.0 wrote to config.yaml for the config `full_config` below.
OFFICIAL_YAML = """\
inline_chunk_threshold_bytes: 3
get_partial_values_concurrency: null
compression:
  algorithm: zstd
  level: 2
max_concurrent_requests: null
max_concurrent_decodes: 3
caching:
  num_snapshot_nodes: null
  num_chunk_refs: 3
  num_transaction_changes: null
  num_bytes_attributes: null
  num_bytes_chunks: null
storage:
  concurrency:
    max_concurrent_requests_for_object: 3
    ideal_concurrent_request_size: 4
  retries:
    max_tries: 1
    initial_backoff_ms: 0
    max_backoff_ms: 0
  timeouts:
    connect_timeout_ms: 1
    read_timeout_ms: null
    operation_timeout_ms: null
    operation_attempt_timeout_ms: null
  unsafe_use_conditional_update: false
  unsafe_use_conditional_create: null
  unsafe_use_metadata: false
  storage_class: X
  metadata_storage_class: null
  chunks_storage_class: null
  minimum_size_for_multipart_upload: null
virtual_chunk_containers:
  tigris://b2/:
    name: null
    url_prefix: tigris://b2/
    store: !tigris
      region: null
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: null
      requester_pays: false
      checksum_algorithm: null
  az://a/:
    name: null
    url_prefix: az://a/
    store: !azure
      account: z
  https://b/:
    name: null
    url_prefix: https://b/
    store: !http {}
  gs://a/:
    name: null
    url_prefix: gs://a/
    store: !gcs
      k: v
  https://a/:
    name: null
    url_prefix: https://a/
    store: !http
      k: v
      headers:
        h: x
  file:///a/:
    name: nm
    url_prefix: file:///a/
    store: !local_file_system /a
  s3://b2/:
    name: null
    url_prefix: s3://b2/
    store: !s3_compatible
      region: us
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: null
  s3://b/:
    name: null
    url_prefix: s3://b/
    store: !s3
      region: us
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: crc64_nvme
manifest:
  preload:
    max_total_refs: null
    preload_if: !or
    - !or
      - !or
        - !and
          - 'true'
          - 'false'
        - !name_matches
          regex: a.*b
      - !path_matches
        regex: p
    - !num_refs
      from: !Included 1
      to: !Excluded 2
    max_arrays_to_scan: null
  splitting:
    split_sizes:
    - - !and
        - !or
          - !name_matches
            regex: x
          - any_array
        - !path_matches
          regex: q
      - - condition: !Axis 2
          num_chunks: 3
        - condition: !DimensionName t
          num_chunks: 4
        - condition: Any
          num_chunks: 5
    - - any_array
      - - condition: Any
          num_chunks: 1
  virtual_chunk_location_compression:
    min_num_chunks: 3
    dictionary_max_training_samples: null
    dictionary_max_size_bytes: null
    compression_level: null
  max_concurrent_manifest_fetches_during_commit: null
previous_file: null
repo_update_retries:
  default:
    max_tries: 3
    initial_backoff_ms: null
    max_backoff_ms: null
num_updates_per_repo_info_file: 7
"""


class TaggedLoader(yaml.SafeLoader):
    """A YAML loader that reads `!tag value` as {tag: value}, the plain form of a tagged enum."""


def _tagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.MappingNode):
        return {tag: loader.construct_mapping(node, deep=True)}
    if isinstance(node, yaml.SequenceNode):
        return {tag: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.ScalarNode)
    number = node.value.isdigit()
    return {tag: int(node.value) if number else node.value}


TaggedLoader.add_multi_constructor("!", _tagged)


def official_dict() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(OFFICIAL_YAML, TaggedLoader)
    return loaded


def full_config() -> c.RepositoryConfig:
    preload = (MP.true() & MP.false()) | MP.name_matches("a.*b") | MP.path_matches("p") | MP.num_refs(1, 2)
    config = c.RepositoryConfig(
        inline_chunk_threshold_bytes=3,
        compression=c.CompressionConfig(level=2, algorithm=c.CompressionAlgorithm.Zstd),
        caching=c.CachingConfig(num_chunk_refs=3),
        storage=c.StorageSettings(
            concurrency=c.StorageConcurrencySettings(3, 4),
            retries=c.StorageRetriesSettings(1, 0, 0),
            timeouts=c.StorageTimeoutSettings(1),
            storage_class="X",
            unsafe_use_metadata=False,
            unsafe_use_conditional_update=False,
        ),
        manifest=c.ManifestConfig(
            preload=c.ManifestPreloadConfig(preload_if=preload),
            splitting=c.ManifestSplittingConfig.from_dict(
                {
                    (MS.name_matches("x") | MS.AnyArray()) & MS.path_matches("q"): {
                        D.Axis(2): 3,
                        D.DimensionName("t"): 4,
                        D.Any(): 5,
                    },
                    MS.AnyArray(): {D.Any(): 1},
                }
            ),
            virtual_chunk_location_compression=c.ManifestVirtualChunkLocationCompressionConfig(3),
        ),
        repo_update_retries=c.RepoUpdateRetryConfig(default=c.StorageRetriesSettings(3)),
        num_updates_per_repo_info_file=7,
        max_concurrent_decodes=3,
    )
    containers = [
        c.VirtualChunkContainer("tigris://b2/", c.ObjectStoreConfig.Tigris(c.S3Options())),
        c.VirtualChunkContainer("az://a/", c.azure_store(account="z")),
        c.VirtualChunkContainer("https://b/", c.http_store()),
        c.VirtualChunkContainer("gs://a/", c.gcs_store({"k": "v"})),
        c.VirtualChunkContainer("https://a/", c.http_store({"k": "v"}, {"h": "x"})),
        c.VirtualChunkContainer("file:///a/", c.local_filesystem_store("/a"), "nm"),
        c.VirtualChunkContainer("s3://b2/", c.s3_store(region="us", s3_compatible=True)),
        c.VirtualChunkContainer(
            "s3://b/", c.s3_store(region="us", checksum_algorithm=c.ChecksumAlgorithm.Crc64Nvme)
        ),
    ]
    for container in containers:
        config.set_virtual_chunk_container(container)
    return config
