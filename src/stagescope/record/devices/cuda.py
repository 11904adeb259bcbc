"""NVIDIA and AMD devices through torch.cuda, which is what torch calls ROCm's too."""

from __future__ import annotations

from stagescope.record.devices.torch_streams import TorchStreams, find_streams


def find(told: str | None) -> TorchStreams | None:
    """Return the current CUDA device once the training has initialized CUDA."""
    return find_streams("cuda", told)
