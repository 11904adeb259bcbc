"""The simulation: every action starts when its rank is free and its inputs have arrived.

The order of each rank is fixed, so the events of a step can be put into one sequence that holds for all steps and
replicas; times are arrays with one entry per replica. All times are whole nanoseconds from the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from truth.plan import DOWN, KINDS, UP

if TYPE_CHECKING:
    from truth.plan import Network, Plan, Shape


class Part(NamedTuple):
    """One action of an entry: the letter of its kind, its virtual stage and its micro-batch."""

    kind: str
    stage: int
    microbatch: int


class Entry(NamedTuple):
    """One entry of a rank's order: an action, or the two of an overlapped pair."""

    rank: int
    parts: tuple[Part, ...]


class Message(NamedTuple):
    """One message: its direction, the virtual stages and pipeline ranks at its ends, and its micro-batch."""

    direction: int
    source: int
    target: int
    sender: int
    receiver: int
    microbatch: int


class Program(NamedTuple):
    """A step as one sequence of entries and blocking sends that respects every dependency, and its messages."""

    events: tuple[Entry | Message, ...]
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    frees: dict[int, int]


class DeadlockError(Exception):
    """The order cannot run with these sends."""


@dataclass(frozen=True)
class Run:
    """When everything happened, in ns. The last axis of every array is the replica.

    `start`, `end` and `free`: step x entry (`free`: when its rank had nothing else to do); `issued`, `sent`, `posted`
    and `arrived`: step x message (`sent`: the sender continued); `began`, `entered`, `synced`, `reduced`, `came` (to
    the norm), `normed`, `optimized` and `over`: step x pipeline rank; `loaded`: step x micro-batch, the end of loading
    before a forward of stage 0; `issued_inside`, `computed` and `reduced_inside`: step x stage, when its reduction
    inside of the step was issued, when its rank began to wait for it, and when that was done.
    """

    plan: Plan
    program: Program
    start: np.ndarray
    end: np.ndarray
    free: np.ndarray
    issued: np.ndarray
    sent: np.ndarray
    posted: np.ndarray
    arrived: np.ndarray
    began: np.ndarray
    entered: np.ndarray
    synced: np.ndarray
    reduced: np.ndarray
    came: np.ndarray
    normed: np.ndarray
    optimized: np.ndarray
    over: np.ndarray
    loaded: np.ndarray
    issued_inside: np.ndarray
    computed: np.ndarray
    reduced_inside: np.ndarray

    @property
    def iterations_ns(self) -> np.ndarray:
        """Length of every step of the run: from the end of the one before on all ranks to its own."""
        ends = self.over.max(axis=(1, 2))
        return np.diff(ends, prepend=self.began[0].min())

    @property
    def iteration_ns(self) -> float:
        """Mean length of a step: the whole run over the number of its steps."""
        return float(self.iterations_ns.mean())

    def parts_ns(self) -> dict[str, np.ndarray]:
        """Return how long every rank spent in each part of a step: step x pipeline rank x replica, by name.

        `loading` is that at the start of the step, `pipeline` the time from then to the end of the rank's last action
        or blocking send, `data-parallel wait` the time until the last replica of its stage got there. They sum to the
        time from `began` to `over`.
        """
        loading = np.zeros_like(self.began)
        loading[:, self.plan.loader] = self.plan.step_load_ns
        return {
            "loading": loading,
            "pipeline": self.entered - self.began - loading,
            "data-parallel wait": self.synced - self.entered,
            "gradient reduction": self.reduced - self.synced,
            "wait for the optimizer": self.normed - self.reduced,
            "optimizer": self.optimized - self.normed,
            "between steps": self.over - self.optimized,
        }

    def idle_ns(self) -> np.ndarray:
        """Return by pipeline rank x replica the mean time per step without an action of that rank."""
        busy = np.zeros(self.over.shape[1:])
        for number, entry in enumerate(self.program.entries):
            busy[entry.rank] += (self.end[:, number] - self.start[:, number]).sum(axis=0)
        return self.iteration_ns - busy / len(self.over)

    def blocked_ns(self) -> np.ndarray:
        """Return by pipeline rank x replica the mean time per step that it was blocked on sends."""
        blocked = np.zeros(self.over.shape[1:])
        for number, message in enumerate(self.program.messages):
            blocked[message.sender] += (self.sent[:, number] - self.issued[:, number]).sum(axis=0)
        return blocked / len(self.over)


def simulate(plan: Plan) -> Run:
    """Return the run of a plan. Raises DeadlockError where blocking sends wait for each other."""
    program = build_program(plan.shape, plan.network)
    state = _Steps(plan, program)
    now = np.zeros((plan.shape.ranks, plan.shape.replicas), np.int64)
    for step in range(plan.shape.steps):
        now = state.run(step, now)
    return Run(plan, program, **state.times)


def build_program(shape: Shape, network: Network) -> Program:
    """Return the events of one step in an order in which everything that an event needs is before it."""
    rank_of = {stage: rank for rank, stages in enumerate(shape.placement) for stage in stages}
    rows = [[_entry(rank, word) for word in row] for rank, row in enumerate(shape.order)]
    entries = [entry for row in rows for entry in row]
    place = {part: number for number, entry in enumerate(entries) for part in entry.parts}
    messages, inputs, outputs = [], [[] for _ in entries], [[] for _ in entries]
    for entry in entries:
        for part in entry.parts:
            source = _source(part, shape.stages, place)
            if source is None or rank_of[source.stage] == rank_of[part.stage]:
                continue
            inputs[place[part]].append(len(messages))
            outputs[place[source]].append(len(messages))
            messages.append(_message(source, part, rank_of))
    frees = _frees(messages, inputs, network.buffers)
    found = Program((), tuple(entries), tuple(messages), _tuples(inputs), _tuples(outputs), frees)
    return found._replace(events=_sequence(rows, found, shape.stages, network))


def _tuples(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows)


def _entry(rank: int, word: str) -> Entry:
    parts = [part[1:].split(".") for part in word.split("+")]
    letters = [part[0] for part in word.split("+")]
    return Entry(rank, tuple(Part(k, int(s), int(m)) for k, (s, m) in zip(letters, parts, strict=True)))


def _source(part: Part, stages: int, place: dict[Part, int]) -> Part | None:
    """Return the action on the neighboring stage whose result an action needs; None for the first of all."""
    if part.kind == "W":
        return None
    stage = part.stage + (-1 if part.kind == "F" else 1)
    if not 0 <= stage < stages:
        return None
    kinds = "F" if part.kind == "F" else "BI"
    return next(found for kind in kinds if (found := Part(kind, stage, part.microbatch)) in place)


def _own_sources(part: Part, stages: int) -> list[Part]:
    """Return what an action needs of its own rank: results of its stage, or of the neighboring stage in a V."""
    kind, stage, m = part
    if kind == "F":
        return [Part("F", stage - 1, m)]
    own = [Part("F", stage, m), Part("I", stage, m)] if kind == "W" else [Part("F", stage, m)]
    return own + [Part(k, stage + 1, m) for k in "BI" if kind != "W" and stage + 1 < stages]


def _message(source: Part, part: Part, rank_of: dict[int, int]) -> Message:
    direction = DOWN if part.kind == "F" else UP
    ends = (rank_of[source.stage], rank_of[part.stage])
    return Message(direction, source.stage, part.stage, *ends, part.microbatch)


def _frees(messages: list[Message], inputs: list[list[int]], buffers: int | None) -> dict[int, int]:
    """Return which entry frees the buffer that a message needs: the consumer of the one `buffers` before it."""
    if buffers is None:
        return {}
    links: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry, numbers in enumerate(inputs):
        for number in numbers:
            link = (messages[number].direction, messages[number].source)
            links.setdefault(link, []).append((number, entry))
    return {
        later: entry
        for row in links.values()
        for (_, entry), (later, _) in zip(row, row[buffers:], strict=False)
    }


def _sequence(
    rows: list[list[Entry]], program: Program, stages: int, network: Network
) -> tuple[Entry | Message, ...]:
    """Return all events so that each follows what it needs; raises DeadlockError if none can go on."""
    number_of = {part: n for n, entry in enumerate(program.entries) for part in entry.parts}
    queues: list[list[Entry | Message]] = []
    for row in rows:
        queue: list[Entry | Message] = []
        for entry in row:
            queue.append(entry)
            sends = program.outputs[number_of[entry.parts[0]]] if network.blocking else ()
            queue += [program.messages[number] for number in sends]
        queues.append(queue)
    index = {message: n for n, message in enumerate(program.messages)}
    made, done, sent = [], set(), set()

    def messages_of(entry: Entry) -> list[Message]:
        return [program.messages[number] for number in program.inputs[number_of[entry.parts[0]]]]

    def is_ready(event: Entry | Message) -> bool:
        if isinstance(event, Message):
            free, waiting = program.frees.get(index[event]), queues[event.receiver][:1]
            is_awaited = any(isinstance(each, Entry) and event in messages_of(each) for each in waiting)
            return (free is None or free in done) and (is_awaited or not network.rendezvous)
        number = number_of[event.parts[0]]
        own = [number_of[p] for part in event.parts for p in _own_sources(part, stages) if p in number_of]
        local = [n for n in own if program.entries[n].rank == event.rank and n != number]
        return all(n in sent for n in program.inputs[number]) and all(n in done for n in local)

    while any(queues):
        before = len(made)
        for queue in queues:
            while queue and is_ready(queue[0]):
                event = queue.pop(0)
                made.append(event)
                if isinstance(event, Message):
                    sent.add(index[event])
                    continue
                number = number_of[event.parts[0]]
                done.add(number)
                if not network.blocking:
                    sent.update(program.outputs[number])
        if len(made) == before:
            raise DeadlockError(f"waiting: {[queue[0] for queue in queues if queue]}")
    return tuple(made)


class _Steps:
    """The times of all steps, filled one step after the other."""

    def __init__(self, plan: Plan, program: Program) -> None:
        shape, self.plan, self.program = plan.shape, plan, program
        sizes = [
            (len(program.entries), ("start", "end", "free")),
            (len(program.messages), ("issued", "sent", "posted", "arrived")),
            (
                shape.ranks,
                ("began", "entered", "synced", "reduced", "came", "normed", "optimized", "over"),
            ),
            (shape.microbatches, ("loaded",)),
            (shape.stages, ("issued_inside", "computed", "reduced_inside")),
        ]
        self.times = {
            name: np.zeros((shape.steps, size, shape.replicas), np.int64)
            for size, names in sizes
            for name in names
        }
        self.number_of = {entry.parts[0]: n for n, entry in enumerate(program.entries)}
        self.index = {message: n for n, message in enumerate(program.messages)}
        # The last action of every stage that computes gradients of its weights; of a pair, either part may.
        last = {
            part.stage: n
            for n, entry in enumerate(program.entries)
            for part in entry.parts
            if part.kind in "BW"
        }
        self.completed_by = {n: [s for s, other in last.items() if other == n] for n in last.values()}

    def run(self, step: int, now: np.ndarray) -> np.ndarray:
        """Fill one step, whose ranks begin at `now`, and return when they begin the next one."""
        times = {name: values[step] for name, values in self.times.items()}
        times["began"][:] = now
        free = now.copy()
        free[self.plan.loader] += self.plan.step_load_ns[step]
        links: dict[tuple[int, int], np.ndarray] = {}
        for event in self.program.events:
            if isinstance(event, Entry):
                self._act(step, event, times, free)
                if not self.plan.network.blocking:
                    for number in self.program.outputs[self.number_of[event.parts[0]]]:
                        self._send(number, step, free, links)
            else:
                self._send(self.index[event], step, free, links)
        return self._finish(step, times, free)

    def _act(self, step: int, entry: Entry, times: dict[str, np.ndarray], free: np.ndarray) -> None:
        plan, number = self.plan, self.number_of[entry.parts[0]]
        ready = free[entry.rank].copy()
        if any(part.kind == "F" and part.stage == 0 for part in entry.parts):
            m = next(part.microbatch for part in entry.parts if part.stage == 0)
            ready = ready + plan.load_ns[step, :, m]
            times["loaded"][m] = ready
        times["free"][number] = free[entry.rank]
        for each in self.program.inputs[number]:
            times["posted"][each] = free[entry.rank]
            ready = np.maximum(ready, times["arrived"][each])
        lengths = [
            plan.action_ns[KINDS.index(part.kind), step, :, part.stage, part.microbatch]
            for part in entry.parts
        ]
        length = lengths[0] if len(lengths) == 1 else np.rint(plan.overlap * sum(lengths)).astype(np.int64)
        times["start"][number] = ready + plan.launch_ns
        times["end"][number] = free[entry.rank] = ready + plan.launch_ns + length
        for stage in self.completed_by[number] if plan.inner and number in self.completed_by else ():
            free[entry.rank] = self._reduce(step, stage, times, free[entry.rank], length)

    def _reduce(
        self, step: int, stage: int, times: dict[str, np.ndarray], computed: np.ndarray, length: np.ndarray
    ) -> np.ndarray:
        """Reduce the gradients of a stage, and return when its ranks go on."""
        inner = self.plan.inner
        issued = computed - np.rint(inner.overlap * length).astype(np.int64)
        done = np.maximum(computed.max(), issued.max() + inner.reduce_ns[step, stage])
        times["issued_inside"][stage], times["computed"][stage] = issued, computed
        times["reduced_inside"][stage] = done
        return times["reduced_inside"][stage]

    def _send(self, number: int, step: int, free: np.ndarray, links: dict) -> None:
        network, message = self.plan.network, self.program.messages[number]
        times = {name: values[step] for name, values in self.times.items()}
        times["issued"][number] = free[message.sender]
        leaves = np.maximum(free[message.sender], links.get((message.sender, message.receiver), 0))
        consumer = self.program.frees.get(number)
        if consumer is not None:
            leaves = np.maximum(leaves, times["start"][consumer])
        if network.rendezvous:
            leaves = np.maximum(leaves, free[message.receiver])
        which = (message.direction, step, slice(None), message.source, message.microbatch)
        gone = leaves + network.occupancy_ns[which]
        links[message.sender, message.receiver] = gone
        times["arrived"][number] = gone + network.latency_ns[which]
        if network.blocking:
            free[message.sender] = times["arrived"][number]
        times["sent"][number] = free[message.sender]

    def _finish(self, step: int, times: dict[str, np.ndarray], free: np.ndarray) -> np.ndarray:
        end = self.plan.end
        times["entered"][:] = free
        if (step + 1) % self.plan.accumulated:
            for name in ("synced", "reduced", "came", "normed", "optimized"):
                times[name][:] = free
            times["over"][:] = free + end.between_ns
            return times["over"].copy()
        times["synced"][:] = free.max(axis=1, keepdims=True)
        times["reduced"][:] = times["synced"] + end.reduce_ns
        late_ns = 0 if self.plan.late_ns is None else self.plan.late_ns[step]
        times["came"][:] = times["reduced"] + late_ns
        times["normed"][:] = times["came"].max() if end.barrier else times["came"]
        times["optimized"][:] = times["normed"] + end.optimizer_ns + self.plan.optimizing_ns
        times["over"][:] = times["optimized"] + end.between_ns + self.plan.pausing_ns
        return times["over"].copy()
