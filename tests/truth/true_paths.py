"""The true critical path and slack of every action, from the dependencies that the simulation used.

Every step and replica is a graph of moments: the start and end of each entry, and the departure and arrival of each
message. A moment has the moments that it had to wait for, with the time that must pass after each. Nothing here is
shared with the analysis: the simulation knows which dependencies exist, and need not infer them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from truth.engine import Run

Moment = tuple[str, int]
"""What happens ("start", "end", "leave", "arrive") and the number of its entry or message."""

Word = tuple[str, int, int]
"""Kind, virtual stage and micro-batch of an action."""


class Graph(NamedTuple):
    """When every moment was, in the order in which they can be computed, and what each had to wait for.

    `waits` has (moment, ns that must pass after it); the one of the own rank is first.
    """

    time_ns: dict[Moment, int]
    waits: dict[Moment, list[tuple[Moment, int]]]


class Truth(NamedTuple):
    """The actions whose execution is on the critical path, and the slack of every action in ns."""

    path: set[Word]
    slack_ns: dict[Word, int]


def true_path(run: Run, step: int, replica: int = 0) -> Truth:
    """Return the critical path to the last end of one step of one replica, and all slacks; pairs by their first part.

    Of two dependencies that were met at the same time, the one of the own rank is followed.
    """
    graph = _graph(run, step, replica)
    entries = run.program.entries
    last = max((("end", n) for n in range(len(entries))), key=lambda moment: graph.time_ns[moment])
    path, at = set(), last
    while True:
        if at[0] == "end":
            path.add(_word(entries[at[1]]))
        met = [(graph.time_ns[source] + lag, source) for source, lag in graph.waits[at]]
        if not met:
            break
        latest = max(time for time, _ in met)
        at = next(source for time, source in met if time == latest)
    latest_ns = dict.fromkeys(graph.time_ns, graph.time_ns[last])
    for moment in reversed(graph.time_ns):
        for source, lag in graph.waits[moment]:
            latest_ns[source] = min(latest_ns[source], latest_ns[moment] - lag)
    slack = {_word(entry): latest_ns["end", n] - graph.time_ns["end", n] for n, entry in enumerate(entries)}
    return Truth(path, slack)


def _word(entry) -> Word:
    return tuple(entry.parts[0])


def _graph(run: Run, step: int, replica: int) -> Graph:
    program, plan, network = run.program, run.plan, run.plan.network
    number_of = {entry.parts[0]: n for n, entry in enumerate(program.entries)}
    index = {message: n for n, message in enumerate(program.messages)}
    graph = Graph({}, {})
    free: dict[int, Moment] = {}
    links: dict[tuple[int, int], Moment] = {}

    def add(moment: Moment, time_ns, waits: list[tuple[Moment, int]]) -> None:
        graph.time_ns[moment], graph.waits[moment] = int(time_ns), waits

    def send(m: int) -> None:
        message = program.messages[m]
        which = (message.direction, step, replica, message.source, message.microbatch)
        occupied, travels = int(network.occupancy_ns[which]), int(network.latency_ns[which])
        waits = [(free[message.sender], 0)]
        if (link := (message.sender, message.receiver)) in links:
            previous = program.messages[links[link][1]]
            busy = (previous.direction, step, replica, previous.source, previous.microbatch)
            waits.append((links[link], int(network.occupancy_ns[busy])))
        if m in program.frees:
            waits.append((("start", program.frees[m]), 0))
        if network.rendezvous and message.receiver in free:
            waits.append((free[message.receiver], 0))
        arrived = int(run.arrived[step, m, replica])
        add(("leave", m), arrived - travels - occupied, waits)
        add(("arrive", m), arrived, [(("leave", m), occupied + travels)])
        links[link] = ("leave", m)
        if network.blocking:
            free[message.sender] = ("arrive", m)

    for event in program.events:
        if event in index:
            send(index[event])
            continue
        n = number_of[event.parts[0]]
        loads = [
            int(plan.load_ns[step, replica, part.microbatch])
            for part in event.parts
            if part.kind == "F" and part.stage == 0
        ]
        waits = [(free[event.rank], sum(loads) + plan.launch_ns)] if event.rank in free else []
        waits += [(("arrive", m), plan.launch_ns) for m in program.inputs[n]]
        start, end = (int(each[step, n, replica]) for each in (run.start, run.end))
        add(("start", n), start, waits)
        add(("end", n), end, [(("start", n), end - start)])
        free[event.rank] = ("end", n)
        if not network.blocking:
            for m in program.outputs[n]:
                send(m)
    return graph
