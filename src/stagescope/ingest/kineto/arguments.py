"""The arguments of events: those of kernels, and those of the calls that launch collectives.

Sources: pytorch/kineto, libkineto/src/output_json.cpp, and torch/csrc/profiler/util.cpp (`saveNcclMeta`) of torch 2.13:
``record_param_comms`` states the process group, and since kineto#1294 the number of the collective in it (``Seq``).
Kineto copies these to the kernel that the call launched; some versions copy them without the number (kineto#1296).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_OF_TYPE = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
MOST_NUMBER = 2**31


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """The relevant arguments of an event."""

    correlation: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    source: Any = msgspec.field(default=None, name="Src Rank")
    target: Any = msgspec.field(default=None, name="Dst Rank")
    annotation: Any = msgspec.field(default=None, name="name")
    external: Any = msgspec.field(default=None, name="External id")
    sequence: Any = msgspec.field(default=None, name="Seq")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    purpose: Any = msgspec.field(default=None, name="Process Group Description")
    members: Any = msgspec.field(default=None, name="Process Group Ranks")


class LaunchArguments(msgspec.Struct, gc=False, frozen=True):
    """The relevant argument of a launch."""

    correlation: Any = None


NO_ARGUMENTS = Arguments()
ARGUMENTS = msgspec.json.Decoder(list[Arguments])


def arguments_of(events: Sequence[Any]) -> list[Arguments]:
    """Return the arguments of events, decoded where they are not yet; NO_ARGUMENTS if they are not an object."""
    undecoded = [event.args for event in events if type(event.args) is msgspec.Raw]
    if not undecoded:
        return [event.args for event in events]
    decoded = iter(_decoded(undecoded))
    return [next(decoded) if type(event.args) is msgspec.Raw else event.args for event in events]


def _decoded(texts: Sequence[msgspec.Raw]) -> list[Arguments]:
    try:
        return ARGUMENTS.decode(b"[" + b",".join(texts) + b"]")
    except msgspec.DecodeError:
        # One bad event fails the whole list, so each is decoded alone; the last resort of a single one is no arguments.
        return [_decoded([text])[0] if len(texts) > 1 else NO_ARGUMENTS for text in texts]


def correlations(arguments: Sequence[Arguments]) -> Any:
    """Return the correlation ids as an array, -1 where there is none."""
    found = [one.correlation for one in arguments]
    return np.array([n if type(n) is int and 0 <= n < 2**62 else -1 for n in found], np.int64)


def message_facts(arguments: Arguments) -> dict[str, Any]:
    """Return a row of the messages table from the arguments of an NCCL kernel; unknown values are null."""
    elements = [n for n in (arguments.elements, arguments.elements_out) if isinstance(n, int)]
    width = BYTES_OF_TYPE.get(arguments.dtype) if isinstance(arguments.dtype, str) else None
    return {
        "correlation": _number(arguments.correlation),
        "collective": str(arguments.collective),
        "source": _number(arguments.source),
        "target": _number(arguments.target),
        # Input and output differ for collectives such as all-gather; the larger one is the message.
        "bytes": max(elements) * width if elements and width else None,
        "annotation": _text(arguments.annotation),
        **call_facts(arguments),
    }


def call_facts(arguments: Arguments) -> dict[str, Any]:
    """Return a row of the calls table: the process group of a collective and its number in that, null if unknown."""
    return {
        "external": _number(arguments.external),
        "sequence": _number(arguments.sequence),
        "group": _text(arguments.group),
        "purpose": _text(arguments.purpose),
        "members": _text(arguments.members),
    }


def _number(value: Any) -> int | None:
    return value if type(value) is int and -MOST_NUMBER <= value < MOST_NUMBER else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
