"""Which releases the package index has, and their archives. Everything goes through pip and its configuration.

pip knows the address of the index, its certificates and its proxies, so none of them is written down here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PYTHONS = ("3.14", "3.13", "3.12", "3.11")
"""Versions of Python whose wheels are read, in this order: no single one has wheels of every release."""

PLATFORMS = {
    "macos": ("macosx_30_0_arm64",),  # pip adds all earlier versions
    "linux": (*(f"manylinux_2_{minor}_x86_64" for minor in range(45, 16, -1)), "manylinux2014_x86_64"),
}
"""The platforms of the wheels to read. The wheels of torch and Paddle for macOS are the smallest."""

ATTEMPTS = ("--retries=1", "--timeout=30")


class RegistryError(Exception):
    """pip could not list or download something; the text is the last line that it printed."""


class UnreachableError(RegistryError):
    """The index does not answer."""


class Release(NamedTuple):
    """One release of a distribution, and the sets of options with which pip may have an archive of it."""

    distribution: str
    version: str
    targets: tuple[tuple[str, ...], ...]


def list_releases(distribution: str, platform: str | None) -> list[Release]:
    """Return the stable releases of a distribution, oldest first.

    `platform` is a key of `PLATFORMS`; None if there are only source archives. Raises `RegistryError` if pip lists no
    release at all, `UnreachableError` if the index does not answer.
    """
    found: dict[str, list[tuple[str, ...]]] = {}
    error = RegistryError(f"{distribution}: no release")
    for options in _targets(platform):
        try:
            lines = _pip("index", "versions", distribution, *options).splitlines()
        except UnreachableError:
            raise
        except RegistryError as failure:
            error = failure
            continue
        listed = next((line for line in lines if line.startswith("Available versions:")), "")
        for version in listed.partition(":")[2].replace(",", " ").split():
            if is_stable(version):
                found.setdefault(version, []).append(options)
    if not found:
        raise error
    return [
        Release(distribution, version, tuple(found[version])) for version in sorted(found, key=version_key)
    ]


def download(release: Release, folder: Path) -> Path:
    """Return the archive of a release, downloaded into `folder`: a wheel, or a source archive.

    pip computes the metadata of a source archive, which runs the setup script of that release.
    """
    wanted = f"{release.distribution}=={release.version}"
    error = RegistryError(f"{wanted}: no archive")
    for options in release.targets:  # pip also lists releases of which it only has a source archive
        try:
            _pip("download", "--no-deps", "--no-cache-dir", f"--dest={folder}", *options, wanted)
        except UnreachableError:
            raise
        except RegistryError as failure:
            error = failure
            continue
        return next(folder.iterdir())
    raise error


def is_stable(version: str) -> bool:
    """Return whether a version is a plain release: no release candidate, no build for one kind of device.

    >>> [is_stable(version) for version in ("2.13.0", "2.13.0+cpu", "0.17.0rc1")]
    [True, False, False]
    """
    return re.fullmatch(r"\d+(\.\d+)*", version) is not None


def version_key(version: str) -> tuple[int, ...]:
    """Return what versions are ordered by.

    >>> version_key("2.10.0") > version_key("2.9.1")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _targets(platform: str | None) -> Iterable[tuple[str, ...]]:
    """Yield the options that select the archives to read."""
    if platform is None:
        yield ("--no-binary=:all:",)
        return
    platforms = tuple(f"--platform={name}" for name in PLATFORMS[platform])
    for python in PYTHONS:
        yield ("--only-binary=:all:", f"--python-version={python}", *platforms)


def _pip(command: str, *arguments: str) -> str:
    quiet: Sequence[str] = ("--disable-pip-version-check", "--no-input", *ATTEMPTS)
    # pip itself warns, which would be errors in tests that run with warnings as errors.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    run = subprocess.run(
        [sys.executable, "-m", "pip", command, *quiet, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    if run.returncode:
        errors = [line for line in run.stderr.splitlines() if line.lower().startswith("error")]
        error = UnreachableError if "Retrying (Retry(" in run.stderr else RegistryError
        raise error((errors or run.stderr.splitlines() or ["pip failed"])[-1])
    return run.stdout
