"""The category of a device kernel, and the operation of one that communicates, from its name.

Sources of the names: NCCL and RCCL (``ncclDevKernel_AllGather_RING_LL``), DeepEP's csrc/kernels
(``deep_ep::internode::dispatch``), cuBLAS (``sm90_xmma_gemm``, ``nvjet``), rocBLAS (``Cijk_``), CUTLASS, FlashAttention
and torch's own kernels. A name that no rule knows is of the category other, which counts as compute.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stagescope.vocabulary import kernels as words

NOTIFY = "notify"
"""DeepEP's exchange of counts before a dispatch or combine; its name does not always state before which."""


class Category(NamedTuple):
    """What a kernel does; `operation` is None except for communication, where NOTIFY is part of the next operation."""

    category: str
    operation: str | None = None


COLLECTIVE_LIBRARIES = re.compile(r"(?:void )?(?:nccl|rccl|hccl|mscclKernel|oneccl)", re.IGNORECASE)
EXPERT_EXCHANGE = re.compile(r"\bep::(?:internode|intranode|internode_ll)::(\w+)|\bdeep_ep::\w+::(\w+)")
COPIES = ("memcpy", "memset")
RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (words.ATTENTION, re.compile(r"flash|fmha|attention|attn|mha_|ring_attn", re.IGNORECASE)),
    (
        words.GEMM,
        re.compile(
            r"gemm|gemv|matmul|nvjet|xmma|^cijk_|splitkreduce|cublas|_mm_|wgrad_kernel", re.IGNORECASE
        ),
    ),
    (
        words.ELEMENTWISE,
        re.compile(
            r"elementwise|pointwise|triton_poi|multi_tensor|_cast_|cast_back|swiglu|silu|gelu|rotary|catarray",
            re.IGNORECASE,
        ),
    ),
)
OPERATIONS_OF_WORDS: tuple[tuple[str, str], ...] = (
    ("alltoall", words.ALL_TO_ALL),
    ("allgather", words.ALL_GATHER),
    ("reducescatter", words.REDUCE_SCATTER),
    ("allreduce", words.ALL_REDUCE),
    ("broadcast", words.BROADCAST),
    ("reduce", words.REDUCE),
)
"""Compared without underscores and in lower case; the longer words first."""
SENDS_AND_RECEIVES = ("send", "recv", "isend", "irecv", "batchisendirecv", "sendrecv", "coalesced")


def kernel_category(name: str) -> Category:
    """Return the category and operation of a kernel.

    NCCL's ``SendRecv`` runs all-to-all as well as messages between two ranks, so its operation is None; the arguments
    of the kernel may state it, see `collective_operation`.

    >>> kernel_category("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    Category(category='communication', operation='all_gather')
    >>> kernel_category("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn").category
    'gemm'
    """
    if exchange := EXPERT_EXCHANGE.search(name):
        return _expert_exchange(exchange[1] or exchange[2])
    if COLLECTIVE_LIBRARIES.match(name):
        word = name.replace("_", "").lower()
        known = next((operation for text, operation in OPERATIONS_OF_WORDS if text in word), None)
        return Category(words.COMMUNICATION, known)
    if name.lower().startswith(COPIES):
        return Category(words.MEMCPY)
    return Category(next((kind for kind, rule in RULES if rule.search(name)), words.OTHER))


def _expert_exchange(function: str) -> Category:
    if function.startswith("get_"):  # get_dispatch_layout computes on its own device
        return Category(words.OTHER)
    if "notify" in function:
        return Category(words.COMMUNICATION, NOTIFY)
    operation = next((each for each in (words.DISPATCH, words.COMBINE) if each in function), words.ALL_TO_ALL)
    return Category(words.COMMUNICATION, operation)


def collective_operation(name: str | None) -> str | None:
    """Return the operation of torch's name of a collective, as the arguments of a kernel state it; None if unknown.

    >>> collective_operation("_allgather_base"), collective_operation("all_to_allv"), collective_operation("send")
    ('all_gather', 'all_to_all', 'send_recv')
    """
    word = (name or "").replace("_", "").lower()
    known = next((operation for text, operation in OPERATIONS_OF_WORDS if text in word), None)
    return words.SEND_RECV if known is None and word.startswith(SENDS_AND_RECEIVES) else known
