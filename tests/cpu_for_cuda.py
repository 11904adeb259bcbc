"""Lets Megatron-core, which creates tensors on a GPU, run on a CPU."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode


def pretend_a_gpu():
    """Replace the functions of torch.cuda that Megatron-core calls without asking for a GPU."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None


class CpuForCuda(TorchFunctionMode):
    """Creates tensors on the CPU where the GPU is requested: the schedules count tokens on ``device="cuda"``."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)
