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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from stagescope.record.devices.device import Device
    from stagescope.record.devices.device_clock import Anchor
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

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
    """Wrap captures and replays of `graphs`, the imported module torch.cuda.graphs."""

    def capture_begin(original: Function) -> Function:
        def begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            device = recorder.timer.device
            if device is None:
                return original(graph, *args, **kwargs)
            device.harvest()
            device.graphs.begin_capture(graph)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:  # re-raised: the capture has not begun, for whatever reason
                device.graphs.end_capture()
                raise

        return begin

    def capture_end(original: Function) -> Function:
        def end(graph: Any) -> Any:
            try:
                return original(graph)
            finally:
                device = recorder.timer.device
                if device is not None:
                    device.graphs.end_capture()

        return end

    def replay(original: Function) -> Function:
        def launch(graph: Any) -> Any:
            device = recorder.timer.device
            if device is None:
                return original(graph)
            device.before_replay(graph)
            result = original(graph)
            device.after_replay(graph)
            return result

        return launch

    for name, make in (("capture_begin", capture_begin), ("capture_end", capture_end), ("replay", replay)):
        patches.wrap(graphs.CUDAGraph, name, make)
