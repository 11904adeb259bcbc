"""Decode events into one type per category, so that fields that nothing needs are skipped instead of decoded.

Most events of a trace are operators, of which only name and times are needed, and Python functions, flows and others,
of which nothing is. Skipping a field validates it as JSON without making an object. The names of operators are few and
repeat: once known they are members of the type (`Literal`), so that msgspec returns the same text for each. A list
with an event that fits none of the types is decoded again with all fields, and its names and categories are added.
"""

from __future__ import annotations

from functools import reduce
from math import nan
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stagescope.ingest.kineto.arguments import NO_ARGUMENTS, Arguments, LaunchArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_TEXT = msgspec.Raw(b"{}")

OPERATORS = "cpu_op"
CALL_NAME = "record_param_comms"
"""The only operator whose arguments are needed."""

LAUNCHES = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime", "privateuse1_driver", "xpu_runtime",
    "xpu_driver", "mtia_runtime",
)  # fmt: skip
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")

PLACE = (("tid", int | str, 0), ("ts", float, nan), ("dur", float, nan))
NAMED = (("name", str, ""), *PLACE)
DECODED = ("args", Arguments, NO_ARGUMENTS)
OF_LAUNCH = ("args", LaunchArguments, LaunchArguments())
FLOW = (("ph", str, ""), ("id", Any, None), ("ts", float, nan), ("dur", float, nan))
FIELDS: dict[str, tuple[tuple[str, Any, Any], ...]] = {
    "user_annotation": NAMED,
    "gpu_user_annotation": NAMED,
    "fwdbwd": FLOW,
    **dict.fromkeys(LAUNCHES, (*PLACE, OF_LAUNCH)),
    **dict.fromkeys(KERNELS, (*NAMED, DECODED)),
}
"""The needed fields of each category, in the order of the file; of others none is needed."""

MOST_NAMES, MOST_CATEGORIES = 4096, 64
MOST_MISSES = 64
"""As many lists more may fit no types than do, before the types are given up: decoding twice would cost too much."""


class TraceEvent(msgspec.Struct, gc=False):
    """The relevant fields of an event of any category; any may be absent, as in an empty object. An absent time is NaN.

    The arguments stay undecoded, so that those of any form can be read.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = nan
    dur: float = nan
    tid: int | str = 0
    id: Any = None
    args: msgspec.Raw = NO_TEXT


class EventDecoder:
    """Decodes lists of events, each as TraceEvent or as a type with the fields of its category, and that as `cat`."""

    def __init__(self) -> None:
        self._of_any = msgspec.json.Decoder(list[TraceEvent])
        self._of_types: msgspec.json.Decoder[list[Any]] | None = None
        self._names: set[str] = set()
        self._categories = set(FIELDS)
        self._hits = 0
        self._misses = 0

    def decode(self, text: bytes, /) -> list[Any]:
        """Return the events of a list; raises what msgspec raises."""
        if self._of_types is not None:
            try:
                events = self._of_types.decode(text)
            except msgspec.ValidationError:
                self._misses += 1
            else:
                self._hits += 1
                return events
        found = self._of_any.decode(text)
        self._learn(found)
        return found

    def _learn(self, events: Sequence[TraceEvent]) -> None:
        if self._misses > MOST_MISSES + self._hits:
            self._of_types = None
            return
        names = {event.name for event in events if event.cat == OPERATORS} - self._names
        categories = {event.cat for event in events} - self._categories - {"", OPERATORS}
        names = names if len(self._names) + len(names) <= MOST_NAMES else set()
        categories = categories if len(self._categories) + len(categories) <= MOST_CATEGORIES else set()
        if names or categories or self._of_types is None:
            self._names |= names
            self._categories |= categories
            self._of_types = msgspec.json.Decoder(list[self._any_type()])  # type: ignore[misc]

    def _any_type(self) -> Any:
        kinds = [_type_of(category, FIELDS.get(category, ())) for category in sorted(self._categories)]
        if self._names:
            name = ("name", Literal[tuple(sorted(self._names))], "")
            arguments = (DECODED,) if CALL_NAME in self._names else ()
            kinds.append(_type_of(OPERATORS, (name, *PLACE, *arguments)))
        return reduce(or_, kinds)


def _type_of(category: str, fields: Sequence[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        f"Event_{category}", fields, tag_field="cat", tag=category, namespace={"cat": category}, gc=False
    )
