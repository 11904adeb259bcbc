"""Runs scripts with torch already imported: a server imports torch once and forks for each script.

Importing torch takes longer than training the small models of these tests. A forked script sees the environment, the
module search path and the start-up hook that a new interpreter would have; only torch itself is already imported, but
none of the modules that the recorder instruments at their import.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
import warnings
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

LIMIT_S = 240
HOOK = "sitecustomize"
RECORDER = r"stagescope\.(?!record\.hooks)"
"""Modules whose warnings stay errors where PYTHONWARNINGS makes errors of warnings. Frameworks warn about what they do
themselves, about scripts, and with a stack level about their caller, which is the wrapper in `record.hooks`."""


def run_forked(*command: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return how a Python script ended and its output; after LIMIT_S, it and all its children are killed."""
    with TemporaryDirectory() as directory:
        outputs = [Path(directory, name) for name in ("out", "err")]
        words = [str(word) for word in command]
        request = {"command": words, "environment": environment, "outputs": [str(path) for path in outputs]}
        code = _ask(_server(os.getpid()), request)
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in outputs)
    assert code is not None, f"not done after {LIMIT_S} s: {words}\n{out[-3000:]}\n{err[-3000:]}"
    return subprocess.CompletedProcess(words, code, out, err)


@cache
def _server(process: int) -> subprocess.Popen[bytes]:
    """Return the server of this process; a fork of the test session needs its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, __file__], env=environment, bufsize=0, **pipes)
    atexit.register(_close, server, process)
    return server


def _close(server: subprocess.Popen[bytes], process: int) -> None:
    if os.getpid() == process:
        server.communicate()


def _ask(server: subprocess.Popen[bytes], request: dict[str, object]) -> int | None:
    """Return the exit code of the script, None if it had to be killed."""
    server.stdin.write(json.dumps(request).encode() + b"\n")
    pid = int(server.stdout.readline())
    is_done = bool(select.select([server.stdout], [], [], LIMIT_S)[0])
    if not is_done:
        os.killpg(pid, signal.SIGKILL)
    code = int(server.stdout.readline())
    return code if is_done else None


def serve() -> dict[str, object] | None:
    """Fork for each request; return the request in the child, None when there are no more."""
    # What torch.distributed.pipelining imports, but not that itself: the recorder instruments it at its import.
    import torch._dynamo  # noqa: PLC0415
    import torch.distributed.fsdp  # noqa: F401, PLC0415

    for line in iter(sys.stdin.buffer.readline, b""):
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def become(request: dict) -> None:
    """Turn this child into a new interpreter that runs the requested script."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in enumerate(request["outputs"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if any(Path(entry, f"{HOOK}.py").exists() for entry in sys.path[1:2]):
        sys.modules.pop(HOOK, None)
        __import__(HOOK)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if os.environ.get("PYTHONWARNINGS"):
        warnings.simplefilter("default")
        warnings.filterwarnings("error", module=RECORDER)
    requested = serve()
    if requested is not None:
        try:
            become(requested)
        except Exception:  # noqa: BLE001  # printed to the script's own stderr, as an interpreter does
            traceback.print_exc()
            sys.exit(1)
