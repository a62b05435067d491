#!/usr/bin/env python3
"""Record the public names and signatures of the official package, for tests/test_public_api.py.

    scripts/record-api.py PACKAGE > tests/data/official_api.json

PACKAGE is importable where this runs, with whatever its sub-modules need (xarray, dask).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.api_description import describe

if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1]), indent=1, sort_keys=True))
