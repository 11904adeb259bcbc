"""Foreign tools that read or write the same data, each in an environment of its own, run for real.

An environment is made once, below `sys.prefix`, by pip with the index that pip is configured with. Its folder
bears a digest of what was asked for, so that other pins make another environment; a stamp is written last, so
that a half-made one is made anew. What cannot be had is said by name: see tests/programs.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from programs import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

try:
    import fcntl
except ImportError:  # Windows: whoever starts two test runs at once there may install twice
    fcntl = None

CACHE = Path(sys.prefix) / "share" / "stagescope-peers"
BIN = "Scripts" if os.name == "nt" else "bin"
STAMP = "made-by-tests"
INSTALL_SECONDS = 1800
"""How long the download of a large tool may take: the limit of the tests that may have to wait for one."""

NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONWARNINGS")

PADDLE = (
    "paddlepaddle==3.3.1",
    "httpx==0.28.1",
    "networkx==3.6.1; python_version >= '3.11'",
    "numpy==2.4.6; python_version >= '3.11'",
    "opt-einsum==3.3.0",
    "protobuf==7.36.2",
    "safetensors==0.8.0",
    "setuptools==80.10.2",
)
"""Paddle for the CPU, its own dependencies pinned where a release for the running Python is known."""

MEGATRON = ("megatron-core==0.16.1",)
DEEPSPEED = (
    "deepspeed==0.19.8",
    "annotated-types==0.8.0",
    "einops==0.8.2",
    "hjson==3.1.0",
    "msgpack==1.2.1",
    "psutil==7.2.2",
    "py-cpuinfo==9.0.0",
    "pydantic==2.14.3",
    "pydantic-core==2.50.4",
    "tqdm==4.70.1",
    "typing-inspection==0.4.5",
)
"""What these two import beside torch, numpy and packaging, which the running environment has."""


def peer_environment(name: str, *requirements: str) -> Path:
    """Return the folder with the programs of environment `name` (``python`` among them), made if need be.

    `requirements` are pip's, pinned: the environment holds them and what they depend on. Where they cannot be
    had the calling test is skipped, and fails under ``CI=true``.
    """
    return _made(name, requirements, _make_environment) / BIN


def peer_packages(name: str, *requirements: str) -> Path:
    """Return a folder for PYTHONPATH with just these packages, for the running Python and what it has already.

    For frameworks that use the torch of the running environment. `requirements` are pip's, pinned, and each is
    installed without what it depends on. Where they cannot be had: as `peer_environment`.
    """
    return _made(name, requirements, _make_folder)


def paddle_python() -> Path:
    """Return the interpreter of an environment with Paddle in it."""
    return peer_environment("paddle", *PADDLE) / "python"


def peer_variables(**more: str) -> dict[str, str]:
    """Return this process's environment variables without those that would lead a peer to our packages."""
    return {key: value for key, value in os.environ.items() if key not in NOT_INHERITED} | more


def _made(name: str, requirements: tuple[str, ...], make: Callable[[Path, tuple[str, ...]], None]) -> Path:
    """Return the folder that bears the digest of what is asked for, made if need be."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        if not (folder / STAMP).exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, requirements)
            (folder / STAMP).write_text("\n".join(requirements), encoding="utf-8")
    return folder


def _make_environment(folder: Path, requirements: tuple[str, ...]) -> None:
    # Made where it stays: the first line of an installed program names its interpreter by its full path.
    # No pip inside: the running one installs into it, and 20 MB are saved per environment.
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = str(folder / BIN / "python")
    _install(folder, ["--python", python, "install", "--only-binary", ":all:"], requirements)


def _make_folder(folder: Path, requirements: tuple[str, ...]) -> None:
    _install(folder, ["install", "--no-deps", "--target", str(folder)], requirements)


def _install(folder: Path, command: list[str], requirements: tuple[str, ...]) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command, *options, *requirements],
        capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS, env=peer_variables(DS_BUILD_OPS="0"),
    )  # fmt: skip
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        missing(f"needs {' '.join(requirements)}, which cannot be installed here: {done.stderr[-300:]}")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock between processes: two test runs at once make one environment, and the second waits."""
    with path.open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
