"""Actions inside a captured CUDA graph, which the graph itself records at each replay.

A graph can only record events created with ``external=True`` (read in torch 2.13.0); an ordinary event becomes a
dependency inside the graph and has no time. Each replay overwrites the times, so they are read before the next
launch, as far as the graph has progressed by then. A replay is asynchronous: until the device reaches it, the events
of the graph still report the replay before. Therefore an ordinary event is recorded after each replay, and the times
of a graph are read once that one has happened.

Python only runs during the capture: an action of a replay belongs to the step in which the graph is launched. A graph
that contains one micro-batch and is replayed for several of a step has captured the number of the first; its later
replays count on from there.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.cuda_graphs import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.devices.device import Device
    from stagescope.record.devices.marks import Mark
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]

MAX_GRAPH_ACTIONS = 4096
"""Limit of the actions in all graphs of a process."""


class GraphMark:
    """An event that a graph records. It belongs to the graph and never returns to a pool."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event


class CapturedAction(NamedTuple):
    """An action of a graph: `emit` records it when called with the times of `start` and `end`."""

    emit: partial[None]
    start: GraphMark
    end: GraphMark


class Replay(NamedTuple):
    """A replay that has not been read: its step, its number within the step, and a mark recorded after it.

    `microbatch` is the number that the graph has captured if it contains a single micro-batch, otherwise None.
    """

    step: int
    number: int
    microbatch: int | None
    mark: Mark

    def emitter_of(self, action: CapturedAction) -> Callable[..., None]:
        """Return the function that records `action` in this replay."""
        if self.microbatch is None or not self.number:
            return partial(action.emit, step=self.step)
        return partial(action.emit, step=self.step, microbatch=self.microbatch + self.number)


class Graph:
    """The actions of one graph, how many more could not be marked, and its last replay until that is read."""

    __slots__ = ("_number", "_step", "actions", "replay", "unmarked")

    def __init__(self) -> None:
        self.actions: list[CapturedAction] = []
        self.unmarked = 0
        self.replay: Replay | None = None
        self._step: int | None = None
        self._number = 0

    def launch(self, step: int, mark: Mark) -> None:
        """Expect the times of a replay that was launched in `step`, before `mark`."""
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        numbers = {action.emit.keywords["microbatch"] for action in self.actions}
        microbatch = numbers.pop() if len(numbers) == 1 else None
        self.replay = Replay(step, self._number, None if microbatch == NONE else microbatch, mark)


class CapturedActions:
    """The actions of all captured graphs of one device. `unread` are the graphs with a replay to be read."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._graphs: weakref.WeakKeyDictionary[Any, Graph] = weakref.WeakKeyDictionary()
        self._capturing: tuple[Any, Graph] | None = None
        self._actions = 0
        self.unread: dict[Graph, None] = {}
        self.is_capturing = False

    def get(self, graph: Any) -> Graph | None:
        """Return the graph with actions that belongs to a CUDAGraph, None if that one contains no actions."""
        return self._graphs.get(graph)

    def begin_capture(self, graph: Any) -> None:
        """Assign the following actions to `graph`."""
        self._graphs.pop(graph, None)
        self._actions = sum(len(one.actions) for one in self._graphs.values())
        self._capturing = graph, Graph()
        self.is_capturing = True

    def end_capture(self) -> None:
        """Return to actions that run where they are called."""
        self.is_capturing = False
        if self._capturing is not None:
            owner, graph = self._capturing
            self._capturing = None
            if graph.actions or graph.unmarked:
                self._graphs[owner] = graph

    def mark(self) -> GraphMark | None:
        """Return a moment of the graph being captured, None if torch has no events for graphs."""
        if self._capturing is None or self._actions >= MAX_GRAPH_ACTIONS:
            return None
        event = self._device.new_graph_event()
        if event is None:
            return None
        self._device.record(event)
        return GraphMark(event)

    def add(self, emit: partial[None], start: object, end: object) -> None:
        """Add an action to the graph being captured; each of its replays counts it as dropped if it has no marks."""
        if self._capturing is None:
            return
        graph = self._capturing[1]
        if isinstance(start, GraphMark) and isinstance(end, GraphMark):
            graph.actions.append(CapturedAction(emit, start, end))
            self._actions += 1
        else:
            graph.unmarked += 1

    def launch(self, graph: Graph, step: int, mark: Mark) -> None:
        """Record that `graph` was launched in `step`, before `mark`."""
        if graph.actions:
            graph.launch(step, mark)
            self.unread[graph] = None

    def discard(self, graph: Graph) -> int:
        """Forget the last replay of a graph; return how many actions it contains if it was not read yet."""
        self.unread.pop(graph, None)
        replay, graph.replay = graph.replay, None
        return len(graph.actions) if replay else 0


def instrument(graphs: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe captures and replays of `graphs`, the imported module torch.cuda.graphs."""
    modules = modules_by_name(graphs)
    for part in PARTS:
        Installation(recorder, patches).install(part, Instrumentation(recorder, patches), modules)


class Instrumentation:
    """The observers of a CUDAGraph."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        del patches
        self.recorder = recorder

    def capture_begin(self, call: Call) -> Observation:
        """Assign the following actions to the graph, unless the capture fails to begin."""
        device = self.recorder.timer.device
        if device is None:
            return
        device.begin_capture(call.owner)
        has_begun = False
        try:
            yield
            has_begun = True
        finally:
            if not has_begun:
                device.graphs.end_capture()

    def capture_end(self, call: Call) -> Observation:
        """Return to actions that run where they are called, even if the capture turns out to be invalid."""
        del call
        try:
            yield
        finally:
            device = self.recorder.timer.device
            if device is not None:
                device.graphs.end_capture()

    def replay(self, call: Call) -> Observation:
        """Read the last replay before this one overwrites its times."""
        device = self.recorder.timer.device
        graph = device.graphs.get(call.owner) if device is not None else None
        if device is None or graph is None:
            yield
            return
        anchor = device.before_replay(graph)
        yield
        device.after_replay(graph, anchor)
