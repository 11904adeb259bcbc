"""Part J: a pipeline of two processes on one GPU, recorded and profiled together.

NCCL refuses two ranks on one GPU, and gloo sends tensors of the host only. The two stages therefore copy what they
send to the host, as a training without direct transfers would. Each rank marks its actions, records them, and lets
torch.profiler record the same actions: their kernels must lie within the recorded intervals, up to the stated error.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.accuracy import TOLERATED_US, Interval, Truth, cupti_actions, read_recording
from gpu.hooked import HookedStage
from gpu.measures import Measure, Unavailable
from stagescope import record
from stagescope.record import session

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 6
MICROBATCHES = 8
WIDTH = 512
LIMIT_S = 120


def pipeline(torch: Any) -> list[Measure]:
    """Measure whether the losses are the same with and without recording, and whether kernels lie within actions."""
    if not hasattr(torch, "distributed"):
        raise Unavailable("torch with torch.distributed is not installed")
    with tempfile.TemporaryDirectory() as name:
        bare, recorded = (_train(Path(name) / mode, mode) for mode in ("bare", "recorded"))
    outside = sum(rank["outside"] for rank in recorded)
    return [
        Measure("losses that differ with recording", float(bare[1]["losses"] != recorded[1]["losses"]), "of 1", high=0),
        Measure("actions recorded and profiled", sum(rank["actions"] for rank in recorded), "", low=4 * MICROBATCHES),
        Measure("actions that do not contain their kernels", outside, "", high=0),
    ]  # fmt: skip


def _train(directory: Path, mode: str) -> list[dict[str, Any]]:
    """Train with two processes; return what each rank printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gpu.pipeline", mode]
    folder = str(Path(__file__).parents[1])
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    ranks = [
        subprocess.Popen(
            [*command, str(directory / str(rank))],
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank ended with {[rank.returncode for rank in ranks]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


class Stage:
    """One of the two stages on its rank: a layer, and what it sends to and receives from the other."""

    def __init__(self, torch: Any, rank: int) -> None:
        self.torch = torch
        self.rank = rank
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(rank)
        self.layer = torch.nn.Linear(WIDTH, WIDTH).to(self.device)
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.hooked: HookedStage | None = None

    def forward(self, microbatch: int) -> float | None:
        """Run one forward; return the loss on the last stage."""
        torch, value = self.torch, None
        if self.rank == 0:
            torch.manual_seed(1000 + microbatch)
            given = torch.randn(WIDTH, WIDTH).to(self.device)
        else:
            given = self._receive(0).requires_grad_()
        output = self._action("forward", microbatch, lambda: self._compute(given))
        if self.rank == 0:
            torch.distributed.send(output.detach().cpu(), 1)
        else:
            value = output.item()
        self.inputs.append(given)
        self.outputs.append(output)
        return value

    def _compute(self, given: Any) -> Any:
        output = self.layer(given)
        return output.square().mean() if self.rank == 1 else output

    def backward(self, microbatch: int) -> None:
        """Run one backward."""
        given, output = self.inputs.pop(0), self.outputs.pop(0)
        gradient = self._receive(1) if self.rank == 0 else None
        self._action("backward", microbatch, lambda: output.backward(gradient))
        if self.rank == 1:
            self.torch.distributed.send(given.grad.cpu(), 0)

    def _receive(self, peer: int) -> Any:
        buffer = self.torch.empty(WIDTH, WIDTH)
        self.torch.distributed.recv(buffer, peer)
        return buffer.to(self.device)

    def _action(self, kind: str, microbatch: int, work: Callable[[], Any]) -> Any:
        if session.recorder is None:
            return work()
        if self.hooked is None:
            self.hooked = HookedStage(session.recorder)
        number = microbatch + (MICROBATCHES if kind == "backward" else 0)
        with self.torch.profiler.record_function(f"action {number}"):
            return self.hooked.forward(number, work)


def _run_rank(mode: str, directory: Path) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - only the ranks need it
    import torch.distributed as dist  # noqa: PLC0415 - same

    dist.init_process_group("gloo")
    stage = Stage(torch, dist.get_rank())
    losses = [_step(stage) for _ in range(STEPS)]
    if mode == "bare":
        losses.append(_step(stage))
        dist.destroy_process_group()
        return {"losses": losses}
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if stage.device == "cuda" else []
    with torch.profiler.profile(activities=activities) as profiler:
        record.start(directory)
        session.recorder.begin_step()  # looks for the device
        losses.append(_step(stage))
        if stage.device == "cuda":
            torch.cuda.synchronize()
        record.stop()
    profiler.export_chrome_trace(str(directory / "trace.json"))
    trace = json.loads((directory / "trace.json").read_text(encoding="utf-8"))
    dist.destroy_process_group()
    truth = cupti_actions(trace) if stage.device == "cuda" else _annotated_operators(trace)
    recorded = read_recording(directory)
    both = recorded.actions.keys() & truth.keys()
    outside = 0
    for action in both:
        found, true = recorded.actions[action], truth[action].interval
        slack_ns = (recorded.stated_us(found.start_ns) + TOLERATED_US) * 1e3
        outside += found.start_ns > true.start_ns + slack_ns or found.end_ns < true.end_ns - slack_ns
    return {"losses": losses, "actions": len(both), "outside": outside}


def _step(stage: Stage) -> list[float | None]:
    losses = [stage.forward(microbatch) for microbatch in range(MICROBATCHES)]
    for microbatch in range(MICROBATCHES):
        stage.backward(microbatch)
    with stage.torch.no_grad():
        for parameter in stage.layer.parameters():
            parameter.sub_(0.01 * parameter.grad)
            parameter.grad = None
    return losses


def _annotated_operators(trace: dict[str, Any]) -> dict[int, Truth]:
    """Return the actions of a trace of the host, from the first to the last operator inside their annotation."""
    base_ns = trace["baseTimeNanoseconds"]
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    actions = {}
    for event in events:
        if event.get("cat") == "user_annotation" and event["name"].startswith("action "):
            until = event["ts"] + event["dur"]
            own = [one for one in operators if event["ts"] <= one["ts"] and one["ts"] + one["dur"] <= until]
            start_us = min((one["ts"] for one in own), default=event["ts"])
            end_us = max((one["ts"] + one["dur"] for one in own), default=until)
            interval = Interval(base_ns + round(start_us * 1000), base_ns + round(end_us * 1000))
            actions[int(event["name"].removeprefix("action "))] = Truth(interval, len(own), is_causal=True)
    return actions


if __name__ == "__main__":
    print(json.dumps(_run_rank(sys.argv[1], Path(sys.argv[2]))))
