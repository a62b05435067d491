"""Ingest files into a repository, on any executor.

The stages are `discover`, `inspect`, `combine`, `plan`, `write` and `publish`; `job` runs them in this order.
A ledger in the repository records the region that each file fills. The public entry point is
`icefloe.ingest_files`. Public names are imported on first use.
"""

from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
