"""The fifth stage of an ingest: write chunks or references, and commit them."""
