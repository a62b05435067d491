#!/usr/bin/env python3
"""Run the tests of an official icechunk release against icefloe, under the name `icechunk`.

    scripts/run-official-suite.py FOLDER [pytest arguments]

FOLDER is the unpacked `tests` folder of a release of the official package; its modules are named
`tests/...` in the arguments. Run it with an interpreter that has icefloe, and from PyPI: pytest
pytest-asyncio pytest-mock pytest-timeout hypothesis boto3 mypy-boto3-s3 termcolor dask distributed. The
official package may be installed or not; it is never imported. Tests that talk to S3 expect a server on
localhost:4200 (releases of 2.x; 9000 for 1.x) with a bucket `testbucket`: `moto_server -p 4200` will do.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

INI = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
addopts = -p stand_in -p no:cacheprovider --import-mode=prepend --continue-on-collection-errors
timeout = 600
testpaths = tests
"""
STAND_IN = "import icefloe\nicefloe.install_as_icechunk()\n"


def main() -> int:
    """The exit code of pytest."""
    if len(sys.argv) < 2 or not Path(sys.argv[1], "conftest.py").is_file():
        sys.stderr.write(__doc__ or "")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.joinpath("tests").symlink_to(Path(sys.argv[1]).resolve())
        place.joinpath("pytest.ini").write_text(INI)
        place.joinpath("stand_in.py").write_text(STAND_IN)
        paths = [
            folder,
            str(Path(__file__).resolve().parent.parent / "src"),
            os.environ.get("PYTHONPATH", ""),
        ]
        environment = {
            "AWS_DEFAULT_REGION": "us-east-1",
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [sys.executable, "-m", "pytest", *sys.argv[2:]]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
