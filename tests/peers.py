"""Foreign tools that read or write the same data, each run in an environment of its own.

An environment is created once, below `sys.prefix`, by pip with its configured index. The folder name contains a
digest of the requirements, so changed pins create another environment. A marker file is written last, so an incomplete
environment is recreated. Requirements that cannot be installed are reported by name: see tests/programs.py.
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
except ImportError:  # Windows: two simultaneous test runs may install twice
    fcntl = None

CACHE = Path(sys.prefix) / "share" / "stagescope-peers"
BIN = "Scripts" if os.name == "nt" else "bin"
MARKER = "made-by-tests"
INSTALL_SECONDS = 1800
"""How long the download of a large tool may take: the time limit of tests that may have to wait for one."""

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
COLOSSALAI = (
    "colossalai==0.5.0",
    *(
        one
        for one in DEEPSPEED
        if one.startswith(("annotated", "einops", "psutil", "pydantic", "tqdm", "typing"))
    ),
    "safetensors==0.8.0",
)
"""The imports of these three except torch, numpy and packaging, which the running environment has. Those that
ColossalAI needs for models and data only are replaced by tools/compatibility/trainings/empty_packages.py.
"""


def peer_environment(name: str, *requirements: str) -> Path:
    """Return the folder with the programs of environment `name` (including ``python``), created if necessary.

    `requirements` are pip's, pinned; their dependencies are installed as well. If they cannot be installed, the
    calling test is skipped, and fails under ``CI=true``.
    """
    return _made(name, requirements, _make_environment) / BIN


def peer_packages(name: str, *requirements: str) -> Path:
    """Return a folder for PYTHONPATH with only these packages, to be used with those of the running Python.

    For frameworks that use the torch of the running environment. `requirements` are pip's, pinned, and each is
    installed without its dependencies. If they cannot be installed: as `peer_environment`.
    """
    return _made(name, requirements, _make_folder)


def paddle_python() -> Path:
    """Return the interpreter of an environment with Paddle in it."""
    return peer_environment("paddle", *PADDLE) / "python"


def peer_variables(**more: str) -> dict[str, str]:
    """Return this process's environment variables without those that would lead a peer to our packages."""
    return {key: value for key, value in os.environ.items() if key not in NOT_INHERITED} | more


def _made(name: str, requirements: tuple[str, ...], make: Callable[[Path, tuple[str, ...]], None]) -> Path:
    """Return the folder of these requirements, created if necessary."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        if not (folder / MARKER).exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, requirements)
            (folder / MARKER).write_text("\n".join(requirements), encoding="utf-8")
    return folder


def _make_environment(folder: Path, requirements: tuple[str, ...]) -> None:
    # Created in its final place: the first line of an installed program contains the full path of its interpreter.
    # Without pip inside: the running one installs into it, which saves 20 MB per environment.
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
    """Hold a lock between processes: of two simultaneous test runs, the second waits for the first."""
    with path.open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
