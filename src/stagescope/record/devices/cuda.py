"""NVIDIA and AMD devices through torch.cuda, which torch also uses for ROCm."""

from __future__ import annotations

from stagescope.record.devices.torch_streams import TorchStreams, find_streams


def find(reported: str | None) -> TorchStreams | None:
    """Return the CUDA device of the training once the training has initialized CUDA."""
    return find_streams("cuda", reported)
