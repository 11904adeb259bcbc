"""A Python of its own in which `stagescope install-hook` has run, with the packages of the tests."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import stagescope
from stagescope.record.startup_file import install_hook


def hooked_python(folder: Path) -> Path:
    """Create the environment in `folder`, and return its interpreter."""
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    roots = [entry for entry in sys.path if Path(entry).name.endswith("-packages")]
    source = str(Path(stagescope.__file__).parents[1])
    (packages / "paths.pth").write_text("\n".join([source, *roots]), encoding="utf-8")
    install_hook(packages)
    return folder / "bin" / "python"
