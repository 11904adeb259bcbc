"""Classify device kernels by name: compute, point-to-point transfer, or collective."""

from __future__ import annotations

COMPUTE_KERNEL, TRANSFER_KERNEL, COLLECTIVE_KERNEL = range(3)


def kernel_class(name: str) -> int:
    """Return the class of a kernel: COMPUTE_KERNEL, TRANSFER_KERNEL or COLLECTIVE_KERNEL.

    NCCL names its transfers `ncclDevKernel_SendRecv`, before 2.19 `ncclKernel_SendRecv…`.
    """
    if not name.lower().startswith(("nccl", "void nccl", "rccl")):
        return COMPUTE_KERNEL
    return TRANSFER_KERNEL if "SendRecv" in name else COLLECTIVE_KERNEL
