"""Fifth stage: write chunks or references, and commit them."""
