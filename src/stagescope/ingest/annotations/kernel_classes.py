"""What a device kernel does, by its name: compute, a point-to-point transfer, or a collective."""

from __future__ import annotations

COMPUTE_KERNEL, TRANSFER_KERNEL, COLLECTIVE_KERNEL = range(3)


def kernel_class(name: str) -> int:
    """Return what a kernel is, by its name: `ncclDevKernel_SendRecv`, before NCCL 2.19 `ncclKernel_SendRecv…`."""
    if not name.lower().startswith(("nccl", "void nccl", "rccl")):
        return COMPUTE_KERNEL
    return TRANSFER_KERNEL if "SendRecv" in name else COLLECTIVE_KERNEL
