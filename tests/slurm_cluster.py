"""A Slurm of this machine alone, for one test: its own munged, slurmctld and slurmd, on free ports of the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "srun", "sbatch")
CPUS, MEMORY_MIB = 8, 8000
MOST_S = 60


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Yield what the environment needs for its commands; skip the test if Slurm is not installed."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    config, munge = _write_config(folder), _munged(folder)
    environment = {"SLURM_CONF": str(config)}
    daemons = [subprocess.Popen(munge)]
    try:
        wait_until((folder / "munge.socket").exists)
        for name in ("slurmctld", "slurmd"):
            output = (folder / f"{name}.out").open("w")
            with output:
                command = [shutil.which(name), "-D", "-f", str(config)]
                daemons.append(subprocess.Popen(command, stdout=output, stderr=output))
        wait_until(lambda: "idle" in _state(environment))
        yield environment
    finally:
        for daemon in reversed(daemons):
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End a daemon; slurmctld waits for requests of jobs that have ended, for minutes."""
    daemon.terminate()
    try:
        daemon.wait(MOST_S / 6)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _state(environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], env={**os.environ, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return done.stdout


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for something to happen, for a minute at most."""
    until_s = time.monotonic() + MOST_S
    while not is_true():
        assert time.monotonic() < until_s, is_true
        time.sleep(0.1)


def _munged(folder: Path) -> list[str]:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {name: folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
    return [
        "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={files['socket']}",
        f"--pid-file={files['pid']}", f"--log-file={files['log']}", f"--seed-file={files['seed']}",
    ]  # fmt: skip


def _write_config(folder: Path) -> Path:
    name = socket.gethostname().partition(".")[0]
    user = "root" if os.geteuid() == 0 else os.environ["USER"]
    for each in ("state", "spool"):
        (folder / each).mkdir()
    config = folder / "slurm.conf"
    config.write_text(f"""
ClusterName=planted
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder / "munge.socket"}
CommunicationParameters=NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder / "state"}
SlurmdSpoolDir={folder / "spool"}
SlurmctldPidFile={folder / "slurmctld.pid"}
SlurmdPidFile={folder / "slurmd.pid"}
SlurmdParameters=config_overrides
NodeName={name} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory={MEMORY_MIB} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    return config
