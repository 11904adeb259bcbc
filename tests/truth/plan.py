"""What a simulated training run does: the time of every action, message and pause, before anything waits.

A Plan has no start times; truth.engine computes them. A planted cause is another Plan made of the same random numbers,
so the difference of two runs is exactly what the cause costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from truth.orders import SCHEDULES, Order, Size

MS = 1_000_000
KINDS = "FBIW"
DOWN, UP = 0, 1
"""Directions of messages: activations to the next virtual stage, gradients to the previous one."""


class Shape(NamedTuple):
    """Size of a run: `ranks` stages per pipeline (times `chunks`), `replicas` of it, and what a step consists of."""

    schedule: str = "1f1b"
    ranks: int = 4
    replicas: int = 1
    microbatches: int = 8
    steps: int = 10
    chunks: int = 1

    @property
    def stages(self) -> int:
        """Virtual stages of the model."""
        return self.ranks * self.chunks

    @property
    def order(self) -> Order:
        """The words of every pipeline rank, see truth.orders."""
        return SCHEDULES[self.schedule][0](Size(self.ranks, self.microbatches, self.chunks))

    @property
    def placement(self) -> list[list[int]]:
        """The virtual stages of every pipeline rank."""
        return SCHEDULES[self.schedule][1](Size(self.ranks, self.microbatches, self.chunks))


@dataclass(frozen=True)
class Costs:
    """Usual times in ns, and the noise of actions.

    `noise` is the standard deviation of each action relative to its time, `message_noise` that of the latency of each
    message; `normal` draws actions from a normal instead of a log-normal distribution. `drift` is the standard
    deviation of a factor per rank and step, an AR(1) process with the coefficient `drift_memory`.
    """

    forward: int = 10 * MS
    backward: int = 20 * MS
    latency: int = MS // 10
    occupancy: int = MS // 10
    launch: int = MS // 50
    reduce: int = 5 * MS
    optimizer: int = 3 * MS
    between: int = MS
    noise: float = 0.01
    message_noise: float = 0.1
    normal: bool = False
    drift: float = 0.0
    drift_memory: float = 0.9


@dataclass(frozen=True)
class Network:
    """How messages travel: arrays by direction x step x replica x sender x micro-batch, and the rules of sending.

    A message occupies its link for `occupancy_ns`, in the order of sending, and arrives `latency_ns` later. With
    `blocking`, its sender does nothing else until it has arrived. With `buffers`, it leaves only when fewer than that
    many earlier messages of the same stage wait for the action that consumes them. With `rendezvous`, it leaves only
    when its receiver has nothing else to do than to wait for it; only for blocking sends.
    """

    latency_ns: np.ndarray
    occupancy_ns: np.ndarray
    blocking: bool = False
    buffers: int | None = None
    rendezvous: bool = False


@dataclass(frozen=True)
class StepEnd:
    """What follows the last action of a rank, in ns.

    All replicas of a stage wait for the last of them, reduce their gradients, run the optimizer, and pause. With
    `sync_first` that wait is before the recorded reduction, as where Megatron-LM reduces embeddings and layer norms
    first; otherwise the reduction is recorded from when the rank enters it. With `barrier`, the optimizer waits for
    all ranks (global gradient norm); with `records_norm`, that is recorded as a collective of all of them.
    """

    reduce_ns: int
    optimizer_ns: int
    between_ns: int
    sync_first: bool = False
    barrier: bool = False
    records_norm: bool = False


@dataclass(frozen=True)
class InnerReduction:
    """A reduction of the gradients of every stage inside its last backward or weight gradient: before the send of it.

    All replicas of a stage wait for the last of them. `reduce_ns` is how long it takes (step x stage). With `overlap`,
    it begins that part of the last action before its end, so that only the rest of it is waited for.
    """

    reduce_ns: np.ndarray
    overlap: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One run. `action_ns` is kind (FBIW) x step x replica x virtual stage x micro-batch.

    `load_ns` (step x replica x micro-batch) is the loading of data before each forward of stage 0, `step_load_ns` (step
    x replica) the same once at the start of a step, and `records_loading` whether it is in the span table. A rank needs
    `launch_ns` to start an action. An overlapped pair takes `overlap` times the sum of its parts. Steps are numbered
    from `first_step`. With `inner`, gradients are reduced inside of the step as well.

    `late_ns` (step x pipeline rank x replica) is what a rank does between its reduction and the norm of the gradients;
    it is in the span table if `records_late` is its name. Gradients are accumulated over `accumulated` steps: only the
    last of them has a reduction, a norm and an optimizer step. The pipeline rank `loader` loads at the start of a step.
    `optimizing_ns` (pipeline rank x replica) is what the optimizer of a rank takes more, `pausing_ns` likewise what it
    does after that, which is in the span table if `records_pause` is its name.
    """

    shape: Shape
    action_ns: np.ndarray
    network: Network
    end: StepEnd
    load_ns: np.ndarray
    step_load_ns: np.ndarray
    launch_ns: int = 0
    overlap: float = 0.85
    records_loading: bool = False
    records_transfers: bool = True
    first_step: int = 0
    inner: InnerReduction | None = None
    late_ns: np.ndarray | None = None
    records_late: str = ""
    accumulated: int = 1
    loader: int = 0
    optimizing_ns: np.ndarray | int = 0
    pausing_ns: np.ndarray | int = 0
    records_pause: str = ""

    def with_network(self, **changes) -> Plan:
        return replace(self, network=replace(self.network, **changes))

    def with_end(self, **changes) -> Plan:
        return replace(self, end=replace(self.end, **changes))

    def with_actions(self, action_ns: np.ndarray) -> Plan:
        return replace(self, action_ns=np.rint(action_ns).astype(np.int64))

    def scaled(self, factor: np.ndarray) -> Plan:
        """Return the plan with actions multiplied; `factor` broadcasts to step x replica x stage x micro-batch."""
        return self.with_actions(self.action_ns * factor)


def make_plan(shape: Shape, costs: Costs, seed: int = 0) -> Plan:
    """Return a run without any planted cause: equal stages, equal ranks, equal micro-batches, and noise."""
    rng = np.random.default_rng(seed)
    size = (shape.steps, shape.replicas, shape.stages, shape.microbatches)
    half = costs.backward // 2
    usual = np.array([costs.forward, costs.backward, half, costs.backward - half]) / shape.chunks
    links = (2, *size)
    latency = np.rint(costs.latency * _lognormal(rng, links, costs.message_noise)).astype(np.int64)
    plan = Plan(
        shape,
        np.broadcast_to(usual.reshape(-1, 1, 1, 1, 1), (len(KINDS), *size)).astype(np.int64),
        Network(latency, np.full(links, costs.occupancy, np.int64)),
        StepEnd(costs.reduce, costs.optimizer, costs.between),
        np.zeros((shape.steps, shape.replicas, shape.microbatches), np.int64),
        np.zeros((shape.steps, shape.replicas), np.int64),
        launch_ns=costs.launch,
    )
    return plan.with_actions(
        plan.action_ns * _noise(rng, (len(KINDS), *size), costs) * _drift(rng, shape, costs)
    )


def _noise(rng: np.random.Generator, size: tuple[int, ...], costs: Costs) -> np.ndarray:
    """Return factors with mean 1, one per action."""
    if costs.normal:
        return np.maximum(1 + costs.noise * rng.normal(size=size), 0.1)
    return _lognormal(rng, size, costs.noise)


def _lognormal(rng: np.random.Generator, size: tuple[int, ...], deviation: float) -> np.ndarray:
    """Return log-normal factors with mean 1 and this standard deviation."""
    sigma = np.sqrt(np.log1p(deviation**2))
    return np.exp(sigma * rng.normal(size=size) - sigma**2 / 2)


def _drift(rng: np.random.Generator, shape: Shape, costs: Costs) -> np.ndarray:
    """Return factors by step x replica x stage x 1, the same for all stages of a rank."""
    draws = rng.normal(size=(shape.steps, shape.replicas, shape.ranks))
    level = draws.copy()
    for step in range(1, shape.steps):
        fresh = np.sqrt(1 - costs.drift_memory**2) * draws[step]
        level[step] = costs.drift_memory * level[step - 1] + fresh
    factor = np.ones((shape.steps, shape.replicas, shape.stages, 1))
    for rank, stages in enumerate(shape.placement):
        factor[:, :, stages, 0] = (1 + costs.drift * level[:, :, rank])[:, :, None]
    return factor
