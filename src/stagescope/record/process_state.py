"""What a process is doing at this moment, for one that has recorded nothing for a while.

Spans are recorded when they end, so the recording of a training that hangs does not contain what it hangs in. The
writer thread reads that from the frames of the training thread: the hooks that are in progress are functions of this
package, whose variables state which action, transfer or collective they are waiting for. The training pays nothing for
it.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from stagescope.record import compiled, wrappers
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from stagescope.record.recorder import Recorder

    Facts = dict[str, object]

MOST_FRAMES = 40
"""Innermost frames of a stack that are kept."""
MOST_THREADS = 64
MOST_CHARACTERS = 200
"""Of the text of one frame."""
MOST_MESSAGES = 16
"""That one wait is for."""

_WRAPPERS = wrappers.__file__
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def process_state(recorder: Recorder, *, all_threads: bool = False) -> Facts:
    """Return what the training thread of this process is doing, as the content of a STATE frame (docs/formats.md).

    With `all_threads`, also the stacks of all other threads. Never raises: what cannot be read is missing.
    """
    frames = sys._current_frames()  # noqa: SLF001  # the documented way to see other threads
    main = threading.main_thread().ident
    thread = recorder.training_thread or main or 0
    frame = frames.get(thread)
    state: Facts = {"time_ns": now_ns(), "step": recorder.step}
    if frame is not None:
        state["calls"] = [*_native_waits(recorder, frame), *_calls(frame, thread)]
        state["stack"] = stack_of(frame)
    groups = _issued(recorder)
    if groups:
        state["groups"] = groups
    if all_threads:
        others = [key for key in frames if key not in (thread, threading.get_ident())]
        state["threads"] = {_name(key): stack_of(frames[key]) for key in others[:MOST_THREADS]}
    return state


def stack_of(frame: FrameType) -> list[str]:
    """Return the frames of a stack, the innermost first, as ``function (file:line)``."""
    found = []
    for each in _outwards(frame):
        code = each.f_code
        found.append(f"{code.co_name} ({code.co_filename}:{each.f_lineno})"[-MOST_CHARACTERS:])
        if len(found) == MOST_FRAMES:
            break
    return found


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name(thread: int) -> str:
    known = threading._active.get(thread)  # type: ignore[attr-defined]  # noqa: SLF001  # current_thread would register it
    return f"{known.name if known is not None else 'unknown'} {thread}"[:MOST_CHARACTERS]


def _native_waits(recorder: Recorder, frame: FrameType) -> Iterator[Facts]:
    """Yield what C++ waits for below the innermost frame."""
    codes = {each.f_code for each in _outwards(frame)}
    for describe in list(recorder.waits_in_native_code):
        found = describe(codes)
        if found is not None:
            yield found


def _calls(frame: FrameType, thread: int) -> list[Facts]:
    """Return the hooked calls in progress, the innermost first."""
    found = list(_calls_of_frames(frame))
    plain = list(_plain_calls(thread))
    if plain and found:  # all were timed on the host, or those on a device began inside of the others
        return sorted(found + plain, key=_began, reverse=True)
    return found + plain


def _began(call: Facts) -> float:
    since: Any = call.get("since_ns", float("inf"))
    return float(since)


def _plain_calls(thread: int) -> Iterator[Facts]:
    """Yield the calls of wrappers in C, which have no variables."""
    for found, issue_ns, start_ns in compiled.calls_in_progress(thread):
        if issue_ns is None:
            yield action_facts(found, start_ns)
        else:
            kind, stage, microbatch, peer, _ = found
            message = message_facts(kind, issue_ns, stage=stage, microbatch=microbatch, peer=peer)
            yield {"call": "wait", "for": [message], "since_ns": start_ns}


def _calls_of_frames(frame: FrameType) -> Iterator[Facts]:
    for each in _outwards(frame):
        if each.f_code.co_filename != _WRAPPERS or each.f_code.co_name != "wrapper":
            continue
        try:
            found = _call(each.f_locals)
        except Exception:  # noqa: BLE001, S112  # another thread changes what is read here
            continue
        if found:
            yield found


def _call(variables: dict[str, Any]) -> Facts | None:
    """Return the call that a wrapper of wrappers.py is making, None if that is no action, wait or activity."""
    if variables.get("token") is not None:
        return action_facts(variables["action"], variables["token"])
    if variables.get("state") is not None:
        describe = getattr(variables.get("watch"), "describe", None)
        found = describe(variables["state"]) if describe is not None else None
        return found if isinstance(found, dict) else None
    if variables.get("waited") is not None:
        return wait_facts(variables["waited"], variables["what"], variables["start"])
    return _observation(variables.get("observation"))


def action_facts(action: tuple[int, int, int, int], start: object) -> Facts:
    """Return what is known of an action that began at `start`, a moment of the timer."""
    kind, stage, microbatch, chunk = action
    places = {"stage": stage, "microbatch": microbatch, "chunk": chunk}
    return {"call": _kind_name(kind), **_known(places), **_since(start)}


def message_facts(kind: int, since: object, **facts: object) -> Facts:
    """Return what is known of a transfer or collective that is waited for."""
    return {"call": _kind_name(kind), **_known(facts), **_since(since)}


def _kind_name(kind: int) -> str:
    found = BY_CODE.get(kind)
    return str(getattr(found, "name", found) or kind)


def _known(facts: dict[str, Any]) -> Facts:
    return {name: value for name, value in facts.items() if value is not None and value != NONE}


def _since(start: object) -> Facts:
    return {"since_ns": start} if isinstance(start, int) else {}  # on a device a moment is an event


def wait_facts(waited: Any, what: object, start: object) -> Facts | None:
    """Return what a wait is for: the object whose method `waited` will be called, with `what`, states it."""
    function = getattr(waited, "func", waited)
    describe = getattr(getattr(function, "__self__", None), "describe_wait", None)
    if describe is None:
        return {"call": "wait", **_since(start)}
    known = getattr(waited, "args", ()) if what is None else (what,)
    messages = list(describe(*known))[:MOST_MESSAGES]
    return {"call": "wait", "for": messages, **_since(start)}


def _observation(observation: Any) -> Facts | None:
    """Return the call that an observer sees, from the variables of the generator."""
    while observation is not None:
        inner = getattr(observation, "gi_yieldfrom", None)
        if not hasattr(inner, "gi_frame"):
            break
        observation = inner
    frame = getattr(observation, "gi_frame", None)
    if frame is None or not frame.f_code.co_filename.startswith(_OWN):
        return None
    place = os.path.basename(frame.f_code.co_filename), frame.f_code.co_name
    describe = _OBSERVERS.get(place)
    return describe(frame.f_locals) if describe is not None else None


def _observed_action(variables: dict[str, Any]) -> Facts | None:
    if variables.get("token") is None:
        return None
    return action_facts((variables["kind"], *variables["place"]), variables["token"])


def _observed_activity(variables: dict[str, Any]) -> Facts | None:
    if variables.get("start_ns") is None:
        return None
    return {"call": "activity", "name": variables["name"], **_since(variables["start_ns"])}


def _observed_collective(variables: dict[str, Any]) -> Facts | None:
    if variables.get("state") is None:
        return None
    facts: Facts = variables["self"].describe_call(variables["state"])
    return facts


def _observed_transfer(variables: dict[str, Any]) -> Facts | None:
    if variables.get("state") is None:
        return None
    facts: Facts = variables["transmission"].describe(variables["state"])
    return facts


_OBSERVERS: dict[tuple[str, str], Callable[[dict[str, Any]], Facts | None]] = {
    ("runs.py", "observe_action"): _observed_action,
    ("host_activities.py", "observe"): _observed_activity,
    ("collectives.py", "observe"): _observed_collective,
    ("torch_transfers.py", "observe"): _observed_transfer,
}
"""The observers whose variables state what is in progress, by file and function."""


def _issued(recorder: Recorder) -> dict[str, int]:
    """Return how many collectives this process has issued in each group of several ranks."""
    found: dict[str, int] = {}
    for issued in list(recorder.issued_collectives):
        found |= issued()
    return found
