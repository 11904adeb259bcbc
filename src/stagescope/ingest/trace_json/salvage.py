"""Read what can be read of a list of events that a decoder rejects as a whole.

Events are found by their brackets (structure.py), so that an invalid value costs one event. Where brackets or quotation
marks are missing or too many, which would move the end of the list or hide all that follows, events are found by the
separators between them instead, and only those next to the damage are lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from stagescope.ingest.trace_json.repair import REFUSALS, decode, reason_of
from stagescope.ingest.trace_json.structure import find_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagescope.ingest.trace_json.structure import Elements

Event = TypeVar("Event")

SEPARATOR = re.compile(rb"\}\s*,\s*(?=\{)")
"""The separator between two events. It may also occur inside an event, in its arguments."""

COMMA = re.compile(rb"\s*,\s*")
PHASE = re.compile(rb'"ph"\s*:')
"""A field of every event, by which an event is distinguished from an object in the arguments of one."""

ANOTHER_EVENT = re.compile(rb"\s*\{|[\s}\]]*,\s*\{")
"""What follows a bracket that does not end the list."""

AFTER_LIST = re.compile(rb'\s*(?:\}?[\s\0]*\Z|\}\s*\{|,\s*"[^"]*"\s*:)')
"""What follows the end of the list in a file that is valid from there on, or to which another one was appended."""

CLOSED = re.compile(rb"\}\s*\]")
MOST_PARTS = 8
"""Number of separators that the arguments of one event may contain, where only separators show its end."""

MOST_ENDS = 16
"""How many closing brackets of one text may be tried as the end of the list, to bound the time."""


class Loss(NamedTuple):
    """Events that cannot be read: the position in the text, why the first one cannot, and how many there are."""

    at: int
    reason: str
    events: int


@dataclass(frozen=True)
class Salvaged(Generic[Event]):
    """The readable events of a text, what was lost, how many bytes belong to them, and whether the list ends there."""

    events: list[Event]
    losses: list[Loss]
    used: int
    ended: bool


def salvage(text: bytes, decode_list: Callable[[bytes], list[Event]]) -> Salvaged[Event]:
    """Return what can be read of a part of a list of events, which begins at an event.

    An event at the end that is incomplete is left for the next part, unless events follow inside of it.
    """
    found = _by_brackets(text, decode_list)
    return _by_separators(text, decode_list) if found is None else found


def _by_brackets(text: bytes, decode_list: Callable[[bytes], list[Event]]) -> Salvaged[Event] | None:
    """Return the events between matching brackets; None where brackets or separators are not those of a list."""
    found = find_elements(text)
    if not _is_list(text, found):
        return None
    losses: list[Loss] = []
    bounds = list(zip(found.starts.tolist(), found.stops.tolist(), strict=True))
    try:
        events = decode_list(b"[" + text[: found.rest] + b"]")
    except REFUSALS:
        events = list(_one_by_one(text, bounds, decode_list, losses))
        # After a quotation mark too many, what is text appears as elements: none of them up to the end is an event.
        last = _first_of_last_run(bounds, losses)
        if last is not None and _hides_events(text[last:], decode_list):
            return None
    if found.end is not None:
        return Salvaged(events, losses, found.end, ended=True)
    if _hides_events(text[found.rest :], decode_list):
        return None
    return Salvaged(events, losses, found.rest, ended=False)


def _first_of_last_run(bounds: Sequence[tuple[int, int]], losses: Sequence[Loss]) -> int | None:
    """Return where the lost elements begin that no readable one follows; None if the last element is readable."""
    lost = {loss.at for loss in losses}
    run = list(takewhile(lost.__contains__, (start for start, _ in reversed(bounds))))
    return run[-1] if run else None


def _is_list(text: bytes, found: Elements) -> bool:
    """Return whether nothing but commas separates the elements, and what ends the list may end it."""
    starts, stops = found.starts.tolist(), found.stops.tolist()
    if starts and text[: starts[0]].strip():
        return False
    if any(not COMMA.fullmatch(text, stop, start) for stop, start in zip(stops, starts[1:], strict=False)):
        return False
    if found.end is None:
        return True
    if text[found.end - 1 : found.end] != b"]" or text[found.rest : found.end - 1].strip():
        return False
    return ANOTHER_EVENT.match(text, found.end) is None


def _hides_events(rest: bytes, decode_list: Callable[[bytes], list[Event]]) -> bool:
    """Return whether events follow inside an event that does not end: one of its brackets or quotes is missing."""
    parts = _parts(rest, MOST_PARTS)
    return any(_event_at(rest, parts[number:], decode_list) for number in range(1, len(parts)))


def _parts(text: bytes, most: int | None = None) -> list[tuple[int, int]]:
    """Return the bounds of the parts between separators, at most `most` of them."""
    found = list(islice(SEPARATOR.finditer(text), most))
    stops = [separator.start() + 1 for separator in found]
    return list(zip([0, *(separator.end() for separator in found)], [*stops, len(text)], strict=True))


def _event_at(
    text: bytes, parts: Sequence[tuple[int, int]], decode_list: Callable[[bytes], list[Event]]
) -> tuple[list[Event], int] | None:
    """Return the event that the first parts are together, and their number; None if they are none."""
    start = parts[0][0]
    for number, (_, stop) in enumerate(parts[:MOST_PARTS], 1):
        if not PHASE.search(text, start, stop):
            continue
        try:
            return decode(decode_list, b"[" + text[start:stop] + b"]"), number
        except REFUSALS:
            continue
    return None


def _one_by_one(
    text: bytes,
    bounds: list[tuple[int, int]],
    decode_list: Callable[[bytes], list[Event]],
    losses: list[Loss],
) -> Iterator[Event]:
    for start, stop in bounds:
        try:
            yield decode(decode_list, b"[" + text[start:stop] + b"]")[0]
        except REFUSALS as refusal:  # noqa: PERF203 - each event fails on its own
            losses.append(Loss(start, _reason(refusal), 1))


def _by_separators(text: bytes, decode_list: Callable[[bytes], list[Event]]) -> Salvaged[Event]:
    """Return the events between separators; what is between two of them is lost, or contains the end of the list."""
    events: list[Event] = []
    losses: list[Loss] = []
    parts = _parts(text)
    number = intact_to = intact_parts = tried = 0
    while number < len(parts):
        start, stop = parts[number]
        found = _event_at(text, parts[number : number + MOST_PARTS], decode_list)
        if found is not None:
            losses += _losses(text, intact_to, start)
            events += found[0]
            number += found[1]
            intact_to, intact_parts = parts[number][0] if number < len(parts) else len(text), number
            continue
        number += 1
        if tried == MOST_ENDS or not (PHASE.search(text, start, stop) and CLOSED.search(text, start)):
            continue
        tried += 1
        end = _by_brackets(text[start:], decode_list)
        if end is not None and end.ended and AFTER_LIST.match(text, start + end.used):
            losses += _losses(text, intact_to, start)
            losses += [loss._replace(at=start + loss.at) for loss in end.losses]
            return Salvaged([*events, *end.events], losses, start + end.used, ended=True)
    if len(parts) - intact_parts <= MOST_PARTS:  # an event that may continue in the next part
        return Salvaged(events, losses, intact_to, ended=False)
    losses += _losses(text, intact_to, len(text))
    return Salvaged(events, losses, len(text), ended=False)


def _losses(text: bytes, start: int, stop: int) -> list[Loss]:
    """Return the loss of what is between two positions of a text; none if nothing is."""
    if start == stop:
        return []
    return [Loss(start, DAMAGED, max(1, len(PHASE.findall(text, start, stop))))]


DAMAGED = "brackets, commas or quotation marks are missing or too many"


def _reason(refusal: BaseException) -> str:
    return reason_of(refusal)[0].replace("$[0]", "event")
