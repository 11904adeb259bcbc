"""The environments of matrix.toml: virtual environments with one release of a framework each."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MATRIX = Path(__file__).parent / "matrix.toml"
TRAININGS = Path(__file__).parent / "trainings"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "stagescope-compatibility"
INSTALLED = "installed"
"""The file in a complete environment that lists what was installed; it is written last."""


class InstallationError(Exception):
    """An environment cannot be made."""


class Environment(NamedTuple):
    """One release of a framework and what it needs; the fields are described in matrix.toml."""

    name: str
    framework: str
    script: str
    packages: tuple[str, ...]
    alone: tuple[str, ...]
    flags: tuple[str, ...]
    variables: dict[str, str]
    runs: dict[str, str]

    @property
    def commands(self) -> list[list[str]]:
        """The arguments of pip, one list per call."""
        alone = ["--no-deps", *self.flags, *self.alone] if self.alone else []
        return [arguments for arguments in (list(self.packages), alone) if arguments]


class Row(NamedTuple):
    """One run of one environment; its name is ENVIRONMENT/RUN."""

    name: str
    environment: Environment
    arguments: list[str]


def read_environments(path: Path = MATRIX) -> list[Environment]:
    """Return the environments of the matrix."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["environments"]
    return [_environment(table, version) for table in tables for version in table["versions"]]


def _environment(table: dict[str, Any], version: str) -> Environment:
    packages, alone = (
        tuple(package.format(version=version) for package in table.get(key, ()))
        for key in ("packages", "alone")
    )
    name, flags = f"{table['framework']}-{version}", tuple(table.get("flags", ()))
    variables, runs = table.get("variables", {}), table["runs"]
    return Environment(name, table["framework"], table["script"], packages, alone, flags, variables, runs)


def rows_of(environments: list[Environment]) -> list[Row]:
    """Return the rows of the matrix."""
    return [
        Row(f"{environment.name}/{run}", environment, shlex.split(arguments))
        for environment in environments
        for run, arguments in environment.runs.items()
    ]


def find_python(environment: Environment, folder: Path, reused: Path | None, python: str) -> Path:
    """Return the Python of an environment, which is made in `folder` if neither folder has it.

    An environment in `reused` is taken as it is. Raises InstallationError with the first error of pip.
    """
    for own in ([reused / environment.name] if reused else []) + [folder / environment.name]:
        marker = own / INSTALLED
        is_current = marker.exists() and marker.read_text() == _contents(environment)
        if is_current or (own.parent == reused and own.exists()):
            return own / "bin" / "python"
    return _install(environment, folder / environment.name, python)


def _contents(environment: Environment) -> str:
    return "".join(f"{shlex.join(arguments)}\n" for arguments in environment.commands)


def _install(environment: Environment, folder: Path, python: str) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    own = folder / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    commands = [[python, "-m", "venv", str(folder)], *([*pip, *each] for each in environment.commands)]
    for command in commands:
        done = subprocess.run(
            command, env=os.environ | environment.variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = done.stderr.splitlines()
            error = next(
                (line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "no message"
            )
            raise InstallationError(f"{environment.name} cannot be installed: {error}")
    (folder / INSTALLED).write_text(_contents(environment))
    return own
