"""How much data a micro-batch has, by the shape of its first tensor.

A tensor of whole numbers with two dimensions or more holds tokens, and its first two dimensions are samples and
positions, in either order. Any other tensor holds samples along its first dimension. Padding counts as data: only the
training knows which tokens are padding, and calls `record.tokens`. Values of a tensor are read only where that needs no
device: those of ``cu_seqlens`` on the CPU, the limits of the sequences packed into a micro-batch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stagescope.record import session
from stagescope.record.format import NONE
from stagescope.vocabulary.counters import LONGEST_SEQUENCE, SAMPLES, TOKENS

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

NAMES = ("tokens", "input_ids", "text", "inputs")
"""Keys of the tokens in the dictionaries of Megatron-LM, transformers and others."""

SEQUENCE_LIMITS = ("cu_seqlens", "cu_seqlens_q")
MATRIX = 2
DEEPEST = 3
"""Batches are nested at most this deep: a tuple of a dictionary of tensors."""


def tokens(count: float, *, microbatch: int | None = None) -> None:
    """State how many tokens a micro-batch of this rank's pipeline has; without `microbatch`, the whole step has.

    Call it within the step, on one rank of each pipeline or on several. Counts of a whole step are added. From the
    first call on, stagescope counts no data itself.

    >>> tokens(4096, microbatch=0)
    """
    _give(TOKENS, count, microbatch)


def samples(count: float, *, microbatch: int | None = None) -> None:
    """State how many samples a micro-batch or the whole step has, as `tokens` does."""
    _give(SAMPLES, count, microbatch)


def _give(name: str, count: float, microbatch: int | None) -> None:
    recorder = session.recorder
    if recorder is None or not recorder.enabled:
        return
    recorder.counters.is_given = True
    recorder.counters.add(name, count, NONE, NONE if microbatch is None else microbatch)


def count_data(recorder: Recorder, data: Any, stage: int, microbatch: int) -> None:
    """Add the tokens or samples of a micro-batch to the counters, unless the training counts them itself."""
    counters = recorder.counters
    if counters.is_given:
        return
    tensor = data if hasattr(data, "shape") else _first_tensor(data)
    if tensor is None:
        return
    shape = tensor.shape
    if not len(shape):
        return
    if len(shape) >= MATRIX and _is_integer(tensor):
        counters.add(TOKENS, shape[0] * shape[1], stage, microbatch)
    else:
        counters.add(SAMPLES, shape[0], stage, microbatch)
    if isinstance(data, dict):
        longest = _longest_sequence(data)
        if longest:
            counters.add(LONGEST_SEQUENCE, longest, stage, microbatch)


def _is_integer(tensor: Any) -> bool:
    """Return whether a tensor of torch or Paddle holds whole numbers."""
    is_float = getattr(tensor, "is_floating_point", None)
    return is_float is not None and not is_float() and "bool" not in str(tensor.dtype)


def _first_tensor(data: Any, depth: int = 0) -> Any:
    """Return the tensor of tokens by its usual names, otherwise the first tensor; None without any."""
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return data
    if depth >= DEEPEST:
        return None
    if isinstance(data, dict):
        named = [data[name] for name in NAMES if name in data]
        parts = [*named, *data.values()]
    elif isinstance(data, (list, tuple)):
        parts = list(data)
    else:
        return None
    found = (_first_tensor(part, depth + 1) for part in parts)
    return next((tensor for tensor in found if tensor is not None), None)


def _longest_sequence(data: dict[Any, Any]) -> int:
    """Return the longest sequence of a packed micro-batch whose limits are on the CPU; 0 if that is unknown."""
    for name in SEQUENCE_LIMITS:
        limits = data.get(name)
        device = str(getattr(limits, "device", ""))
        if limits is None or device != "cpu":
            continue
        places = limits.reshape(-1).tolist()
        return max((later - before for before, later in pairwise(places)), default=0)
    return 0
