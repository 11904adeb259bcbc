"""Actions inside a captured CUDA graph: recorded by the graph itself, at each of its replays.

An event that a graph is to record has to be an external one (read in torch 2.13.0); an ordinary event becomes a
dependency there and has no time. Each replay overwrites the times, so they are read before the next one is launched,
as far as the graph has come by then. Python runs only once, in the capture: what a replay computes belongs to the
step in which it is launched.
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
    """An event that a graph records; it belongs to the graph and goes back to no pool."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event


class Graph:
    """The actions that one graph holds, and whether a replay of it still has to be read."""

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
        """Take the actions from here on for those of `graph`."""
        self.is_capturing = True
        self._current = self._graphs[graph] = Graph()

    def end_capture(self) -> None:
        """Go back to actions that run where they are called."""
        self.is_capturing = False
        self._current = None

    def mark(self) -> GraphMark | None:
        """Return a moment of the graph that is being captured, None where torch has no events for it."""
        event = (
            self._device.new_graph_event() if self._current and self._actions < MAX_GRAPH_ACTIONS else None
        )
        if event is None:
            return None
        self._device.record(event)
        return GraphMark(event)

    def add(self, emit: Function, start: GraphMark, end: GraphMark) -> None:
        """Add a action to the graph that is being captured."""
        if self._current is not None:
            self._current.actions.append((emit, start, end))
            self._actions += 1

    def launch(self, graph: Any, step: int, anchor: Anchor | None) -> None:
        """Remember that `graph` has been launched, in `step` and after `anchor`."""
        known = self._graphs.get(graph)
        if known is not None and known.actions:
            known.launched_in, known.anchor = step, anchor

    def lose(self, graph: Any) -> None:
        """Count the actions of a replay that has not been read, because the next one is about to overwrite it."""
        known = self._graphs.get(graph)
        if known is not None and known.launched_in is not None:
            self._lost += len(known.actions)
            known.launched_in = None

    def take_lost(self) -> int:
        """Return how many actions were lost since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def done(self) -> Iterator[tuple[Function, GraphMark, GraphMark, Anchor]]:
        """Yield the actions of the replays that have come to their end, each once."""
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
    """Wrap `graphs`, the imported module torch.cuda.graphs: captures and replays become known."""

    def capture_begin(original: Function) -> Function:
        def begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            device = recorder.timer.device
            if device is None:
                return original(graph, *args, **kwargs)
            device.harvest()
            device.graphs.begin_capture(graph)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:  # raised again: no capture has begun, whatever it was
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
