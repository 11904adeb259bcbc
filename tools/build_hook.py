# noqa: INP001 - a script, not a package
"""Builds the extension of native/ into the wheel, or beside the sources where the package is installed editable.

    python tools/build_hook.py

builds it beside the sources. Without a compiler or Python's headers, and with STAGESCOPE_COMPILED=0, the package has
none, is one for all platforms, and records the same in more time. The flags leave out what differs between two places
that build the same sources.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native"
TARGET = "stagescope/record/_plain" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so")
FLAGS = ("-std=c11", "-O2", "-g0", "-Wall", "-fPIC", "-fno-plt", "-shared", "-s", "-fvisibility=hidden")
LIMIT_S = 300
MOST_CHARACTERS = 2000


class Extension(BuildHookInterface):  # type: ignore[misc,valid-type]  # hatchling has no types here
    """The build hook of hatchling."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extension, and add it to a wheel."""
        is_editable = version == "editable"
        built = ROOT / ("src" if is_editable else "build") / TARGET
        failure = build(built)
        if failure is not None:
            self.app.display_warning(f"stagescope records without its extension in C: {failure}")
        elif not is_editable:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(built)] = TARGET


def build(target: Path) -> str | None:
    """Build the extension, and return None, or why it was not built: there is then no file."""
    target.unlink(missing_ok=True)
    if os.environ.get("STAGESCOPE_COMPILED") == "0":
        return "STAGESCOPE_COMPILED is 0"
    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is for Linux, and for Python with its global lock"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"{headers} has no Python.h (Debian: apt-get install python3-dev)"
    compiler = shlex.split(os.environ.get("CC") or "cc")
    sources = sorted(path.name for path in SOURCES.glob("*.c"))
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}.tmp")
    command = [*compiler, *FLAGS, f"-I{headers}", *sources, "-o", str(made)]
    try:
        done = subprocess.run(
            command, cwd=SOURCES, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        if done.returncode != 0:
            return f"{compiler[0]} failed: {done.stderr.strip()[-MOST_CHARACTERS:]}"
        made.replace(target)  # a process that has loaded the one before keeps it
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler[0]} cannot be run: {error}"
    finally:
        made.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    sys.exit(build(ROOT / "src" / TARGET))
