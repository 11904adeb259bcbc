"""Actions inside a captured CUDA graph, which the graph itself records at each replay.

A graph can only record events created with ``external=True`` (read in torch 2.13.0); an ordinary event becomes a
dependency inside the graph and has no time. Each replay overwrites the times, so they are read before the next
launch, as far as the graph has progressed by then. Python only runs during the capture: an action of a replay belongs
to the step in which the graph is launched.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.cuda_graphs import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.devices.device import Device
    from stagescope.record.devices.device_clock import Anchor
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]
    Observation = Generator[None, Any, None]

MAX_GRAPH_ACTIONS = 4096


class GraphMark:
    """An event that a graph records. It belongs to the graph and never returns to a pool."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event


class Graph:
    """The actions of one graph, and the step of a replay that has not been read yet."""

    __slots__ = ("actions", "anchor", "launched_in")

    def __init__(self) -> None:
        self.actions: list[tuple[Function, GraphMark, GraphMark]] = []
        self.anchor: Anchor | None = None
        self.launched_in: int | None = None


class CapturedActions:
    """The actions of all captured graphs of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._graphs: weakref.WeakKeyDictionary[Any, Graph] = weakref.WeakKeyDictionary()
        self._current: Graph | None = None
        self._actions = 0
        self._lost = 0
        self.is_capturing = False

    def begin_capture(self, graph: Any) -> None:
        """Assign the following actions to `graph`."""
        self.is_capturing = True
        self._current = self._graphs[graph] = Graph()

    def end_capture(self) -> None:
        """Return to actions that run where they are called."""
        self.is_capturing = False
        self._current = None

    def mark(self) -> GraphMark | None:
        """Return a moment of the graph being captured, None if torch has no events for graphs."""
        event = (
            self._device.new_graph_event() if self._current and self._actions < MAX_GRAPH_ACTIONS else None
        )
        if event is None:
            return None
        self._device.record(event)
        return GraphMark(event)

    def add(self, emit: Function, start: GraphMark, end: GraphMark) -> None:
        """Add an action to the graph being captured."""
        if self._current is not None:
            self._current.actions.append((emit, start, end))
            self._actions += 1

    def launch(self, graph: Any, step: int, anchor: Anchor | None) -> None:
        """Record that `graph` was launched in `step`, after `anchor`."""
        known = self._graphs.get(graph)
        if known is not None and known.actions:
            known.launched_in, known.anchor = step, anchor

    def count_lost(self, graph: Any) -> None:
        """Count the actions of a replay that has not been read and that the next replay is about to overwrite."""
        known = self._graphs.get(graph)
        if known is not None and known.launched_in is not None:
            self._lost += len(known.actions)
            known.launched_in = None

    def take_lost(self) -> int:
        """Return how many actions were lost since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def done(self) -> Iterator[tuple[Function, GraphMark, GraphMark, Anchor]]:
        """Yield the actions of all completed replays, each once."""
        for graph in list(self._graphs.values()):
            step, anchor = graph.launched_in, graph.anchor
            if step is None or not all(self._device.is_done(end.event) for _, _, end in graph.actions):
                continue
            graph.launched_in = None
            if anchor is None:
                self._lost += len(graph.actions)
                continue
            for emit, start, end in graph.actions:
                yield partial(emit, step=step), start, end, anchor


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
        device.harvest()
        device.graphs.begin_capture(call.owner)
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
        if device is None:
            return
        device.before_replay(call.owner)
        yield
        device.after_replay(call.owner)
