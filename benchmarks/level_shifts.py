"""False alarms and detection of the search for changes of level (docs/live.md), on planted series.

    python benchmarks/level_shifts.py --steps 10000 --trials 100

The series are those of 64 ranks, 126 links, 14 causes and the iteration: AR(1) noise with its own drift per series and
a drift that all have in common, in some cases with independent noise on top. It is generated here, with no code of the
product. `--single` watches each of 40 series alone, without the others that it is like.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from stagescope.analysis.watching.alarms import Alarm, Alarms
from stagescope.analysis.watching.step_values import StepValues, Subject
from stagescope.vocabulary.causes import CAUSES

Floats = npt.NDArray[np.float64]
RANKS = 64
SLOW_RANK, SLOWDOWN, SLOW_FROM = 17, 1.1, 120
CASES = (
    (0.0, 0.01, 0.0),
    (0.0, 0.02, 0.0),
    (0.0, 0.03, 0.0),
    (0.5, 0.02, 0.0),
    (0.9, 0.02, 0.0),
    (0.9, 0.05, 0.0),
    (0.98, 0.02, 0.0),
    (0.98, 0.05, 0.0),
    (0.98, 0.05, 0.02),
    (0.95, 0.03, 0.02),
)
"""Memory and deviation of the noise of each series, and the deviation of independent noise on top."""
SINGLE = 40


def subjects() -> list[Subject]:
    links = [(rank, rank + 1, "forward") for rank in range(RANKS - 1)]
    links += [(rank + 1, rank, "backward") for rank in range(RANKS - 1)]
    return [
        *(Subject("rank", rank=rank) for rank in range(RANKS)),
        *(Subject("link", rank=one, peer=other, direction=way) for one, other, way in links),
        *(Subject("part", cause.name) for cause in CAUSES),
        Subject("iteration"),
    ]


def noise(generator: np.random.Generator, count: int, steps: int, memory: float, deviation: float) -> Floats:
    """Return AR(1) noise with this standard deviation, from its stationary distribution."""
    found = np.empty((count, steps))
    found[:, 0] = generator.standard_normal(count)
    for step in range(1, steps):
        found[:, step] = memory * found[:, step - 1] + np.sqrt(1 - memory**2) * generator.standard_normal(
            count
        )
    return deviation * found


def values_of(
    generator: np.random.Generator, names: list[Subject], steps: int, case: tuple[float, float, float]
) -> Floats:
    """Return the values of all subjects in all steps, in nanoseconds; a cause is a few hundredths of the iteration."""
    usual = np.array(
        [1e9 if name.kind == "iteration" else 3e7 if name.kind == "part" else 5e8 for name in names]
    )
    common = noise(generator, 1, steps, 0.95, 0.03)
    memory, deviation, independent = case
    own = noise(generator, len(names), steps, memory, deviation)
    own += independent * generator.standard_normal(own.shape)
    return usual[:, None] * np.exp(own + common)


def run(names: list[Subject], values: Floats) -> list[Alarm]:
    alarms = Alarms()
    for step in range(values.shape[1]):
        alarms.add(StepValues(step, dict(zip(names, values[:, step], strict=True))))
    return alarms.all


def watch_alone(seed: int, steps: int) -> None:
    """Print the false alarms of series that are watched alone."""
    print(f"{SINGLE} series, each watched alone")
    print("memory  noise  independent  false alarms  steps of all")
    for memory, deviation, independent in CASES:
        generator = np.random.default_rng(seed)
        series = noise(generator, SINGLE, steps, memory, deviation)
        series += independent * generator.standard_normal(series.shape)
        found = sum(len(run([Subject("iteration")], 1e9 * np.exp(one)[None])) for one in series)
        print(
            f"{memory:6.2f} {100 * deviation:4.0f} % {100 * independent:10.0f} % {found:13} {SINGLE * steps:13}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--single", action="store_true")
    asked = parser.parse_args()
    if asked.single:
        watch_alone(asked.seed, asked.steps)
        return
    names = subjects()
    slow = names.index(Subject("rank", rank=SLOW_RANK))
    print(f"{len(names)} series; rank {SLOW_RANK} becomes {SLOWDOWN:g} times as slow at step {SLOW_FROM}")
    print(
        "memory  noise  independent  false alarms       steps  found within 10 steps  other alarms  median delay"
    )
    for case in CASES:
        memory, deviation, independent = case
        generator = np.random.default_rng(asked.seed)
        false = run(names, values_of(generator, names, asked.steps, case))
        delays, others = [], 0
        for _ in range(asked.trials):
            values = values_of(generator, names, SLOW_FROM + 30, case)
            values[slow, SLOW_FROM:] *= SLOWDOWN
            found = run(names, values)
            own = [each for each in found if each.changes[0].subject == names[slow]]
            delays += [each.found_step - SLOW_FROM + 1 for each in own[:1]]
            others += len(found) - len(own)
        early = sum(delay <= 10 for delay in delays)
        median = f"{np.median(delays):.0f} steps" if delays else "-"
        print(
            f"{memory:6.2f} {100 * deviation:4.0f} % {100 * independent:10.0f} %  {len(false):12} {asked.steps:11} "
            f"{early:13} of {asked.trials:4} {others:13} {median:>13}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
