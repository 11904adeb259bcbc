"""How much data a micro-batch has, by the shape of its first tensor.

A tensor of whole numbers with two dimensions or more holds tokens, and its first two dimensions are samples and
positions, in either order. Any other tensor holds samples along its first dimension. Padding counts as data: only the
training knows which tokens are padding, and calls `record.tokens`. Values of a tensor are read only where that needs no
device: those of ``cu_seqlens`` on the CPU, the limits of the sequences packed into a micro-batch.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from stagescope.record import session
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.vocabulary.counters import LONGEST_SEQUENCE, SAMPLES, TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.record.counters import Counters
    from stagescope.record.recorder import Recorder

NAMES = ("tokens", "input_ids", "text", "inputs")
"""Keys of the tokens in the dictionaries of Megatron-LM, transformers and others."""

SEQUENCE_LIMITS = ("cu_seqlens", "cu_seqlens_q")
MATRIX = 2
FIRST, SHAPE = itemgetter(0), attrgetter("shape")
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
    size = _size_of(data)
    if size is None:
        return
    place, time_ns = counters.place(stage, microbatch), now_ns()
    counters.put(*size, place, time_ns)
    longest = _longest_sequence(data) if isinstance(data, dict) else 0
    if longest:
        counters.put(LONGEST_SEQUENCE, longest, place, time_ns)


def count_step(recorder: Recorder, arguments: Sequence[Any], keywords: Sequence[Any]) -> None:
    """Count the data of all micro-batches of a step, given their positional and keyword arguments.

    Positional arguments are counted on the writer thread, by the shapes of their first tensors: on the thread of the
    training that would cost a few microseconds for each micro-batch.
    """
    counters = recorder.counters
    if counters.is_given:
        return
    try:
        # Functions of C throughout: a comprehension would be a function of Python.
        shapes = dict(enumerate(map(SHAPE, map(FIRST, arguments))))
        kind = arguments[0][0].dtype
    except (AttributeError, IndexError, KeyError, TypeError):
        shapes = {}
    if not shapes or any(keywords):
        for microbatch, (args, kwargs) in enumerate(zip(arguments, keywords, strict=True)):
            count_data(recorder, {**kwargs, None: args} if kwargs else args, 0, microbatch)
        return
    counters.put_later(partial(_count_shapes, shapes, kind, recorder.step, now_ns()))


def count_shapes(recorder: Recorder, shapes: Mapping[int, Sequence[int]], kind: object) -> None:
    """Count the data of the micro-batches of a step on the writer thread, given the shapes and a type of values."""
    recorder.counters.put_later(partial(_count_shapes, shapes, kind, recorder.step, now_ns()))


def _count_shapes(
    shapes: Mapping[int, Sequence[int]], kind: object, step: int, time_ns: int, counters: Counters
) -> None:
    """Add one value for each micro-batch of a step, whose tensors themselves were not kept."""
    for microbatch, shape in shapes.items():
        size = _size(shape, kind)
        if size is not None:
            counters.put(*size, (step, 0, microbatch), time_ns)


def _size_of(data: Any) -> tuple[str, int] | None:
    """Return the unit of data and how much there is; None if there is no tensor with a dimension."""
    tensor = _first_tensor(data)
    return None if tensor is None else _size(tensor.shape, tensor.dtype)


def _size(shape: Sequence[int], kind: object) -> tuple[str, int] | None:
    """Return the unit and the size of a tensor of torch or Paddle with this shape and type of values."""
    if not len(shape):
        return None
    if len(shape) >= MATRIX and "int" in str(kind).lower():
        return TOKENS, shape[0] * shape[1]
    return SAMPLES, shape[0]


def _first_tensor(data: Any, depth: int = 0) -> Any:
    """Return the tensor of tokens by its usual names, otherwise the first tensor; None without any."""
    if isinstance(data, dict):
        parts: Sequence[Any] = [*(data[name] for name in NAMES if name in data), *data.values()]
    elif isinstance(data, (list, tuple)):
        parts = data
    else:
        return data if hasattr(data, "shape") and hasattr(data, "dtype") else None
    for part in parts if depth < DEEPEST else ():
        tensor = _first_tensor(part, depth + 1)
        if tensor is not None:
            return tensor
    return None


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
