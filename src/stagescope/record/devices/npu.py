"""Ascend devices through torch.npu, which torch_npu adds to torch when the training imports it."""

from __future__ import annotations

from stagescope.record.devices.torch_streams import TorchStreams, find_streams


def find(reported: str | None) -> TorchStreams | None:
    """Return the NPU of the training once the training has initialized it."""
    return find_streams("npu", reported)
