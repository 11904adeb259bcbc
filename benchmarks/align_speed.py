"""How much CPU time it takes to bring the clocks of many machines to one.

    python benchmarks/align_speed.py

The limit is 30 CPU seconds for 1,000 machines and 3,000 pairs of them that exchange messages. The last rows have
outliers or a clock adjustment, so that several explanations are tried. `worst` is the largest error of the
aligned offsets, to show that the work was done.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from timing import median_cpu_seconds

from stagescope.clocks import align_clocks
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform

ROUNDS = 3
LIMIT_SECONDS = 30.0
LENGTH_NS = 10_000_000_000
ORIGIN_NS = 1_763_600_000_000_000_000
FLOOR_NS, SPREAD_NS = 20_000, 40_000


def main() -> None:
    """Print one row per run."""
    print(f"{'machines':>8}{'pairs':>8}{'messages':>10}{'':16}{'CPU s':>8}{'limit':>8}{'worst us':>10}")
    for machines, pairs, each, kind in (
        (8, 16, 500, ""),
        (100, 300, 100, ""),
        (1_000, 3_000, 32, ""),
        (1_000, 3_000, 32, "1% false"),
        (1_000, 3_000, 32, "one step"),
    ):
        timeline, offsets_ns = many_machines(machines, pairs, each, kind)
        seconds = median_cpu_seconds(ROUNDS, align_clocks, timeline)
        found = align_clocks(timeline).clocks
        worst = max(
            abs(m.offset_ns + offset - offsets_ns[0])
            for m, offset in zip(found.machines, offsets_ns, strict=True)
        )
        limit = LIMIT_SECONDS if machines == 1_000 else "-"
        line = (
            f"{machines:8}{pairs:8}{2 * pairs * each:10} {kind:15}{seconds:8.2f}{limit:>8}{worst / 1e3:10.1f}"
        )
        print(line, flush=True)


def many_machines(machines: int, pairs: int, each: int, kind: str) -> tuple[Timeline, np.ndarray]:
    """Return a run in which neighbors on a ring, and pairs by chance, send each other messages; and its offsets."""
    rng = np.random.default_rng(7)
    ring = np.stack([np.arange(machines), (np.arange(machines) + 1) % machines])
    chance = rng.integers(0, machines, (2, 4 * pairs))
    chance = chance[:, chance[0] != chance[1]]
    ends = np.concatenate([ring, chance], axis=1)[:, :pairs]
    source = np.repeat(np.concatenate([ends[0], ends[1]]), each)
    target = np.repeat(np.concatenate([ends[1], ends[0]]), each)
    sent_ns = np.sort(rng.uniform(0, LENGTH_NS, (2 * pairs, each)), axis=1).reshape(-1)
    arrived_ns = sent_ns + FLOOR_NS + rng.exponential(SPREAD_NS, len(sent_ns))
    offsets_ns = rng.integers(-50_000_000, 50_000_000, machines)
    rates = rng.uniform(-20e-6, 20e-6, machines)
    offsets_ns[0], rates[0] = 0, 0.0

    def read(clock: np.ndarray, true_ns: np.ndarray) -> np.ndarray:
        stepped = (clock == machines // 2) & (true_ns > LENGTH_NS / 2) & (kind == "one step")
        moved_ns = offsets_ns[clock] + rates[clock] * true_ns + np.where(stepped, 1e6, 0.0)
        return np.rint(true_ns + moved_ns).astype(np.int64) + ORIGIN_NS

    false = (rng.random(len(sent_ns)) < 0.01) & (kind == "1% false")
    received_ns = read(target, arrived_ns) + np.where(false, rng.uniform(-1e7, 1e7, len(sent_ns)), 0).astype(
        np.int64
    )
    began_ns = read(source, sent_ns)
    numbers = np.tile(np.arange(each), 2 * pairs)
    # A pair may be drawn twice: the step distinguishes its messages.
    step = np.repeat(np.concatenate([np.arange(pairs)] * 2), each)
    messages = pl.DataFrame({"step": step, "microbatch": numbers})
    sends = _rows("send_forward", messages, (source, target), (began_ns, began_ns + 10_000))
    receives = _rows("recv_forward", messages, (target, source), (received_ns - 1_000_000, received_ns))
    names = [f"node-{number}" for number in range(machines)]
    ranks = pl.DataFrame({"rank": range(machines), "machine": names, "clock": names})
    empty = empty_timeline()
    spans = conform(pl.concat([sends, receives]), SPANS)
    return Timeline(spans, conform(ranks, RANKS), empty.steps, empty.clocks, empty.diagnostics), offsets_ns


def _rows(
    kind: str,
    messages: pl.DataFrame,
    ends: tuple[np.ndarray, np.ndarray],
    times_ns: tuple[np.ndarray, np.ndarray],
) -> pl.DataFrame:
    return messages.with_columns(
        rank=pl.Series(ends[0]),
        peer=pl.Series(ends[1]),
        start_ns=pl.Series(times_ns[0]),
        end_ns=pl.Series(times_ns[1]),
        kind=pl.lit(kind),
        stage=pl.lit(0 if kind.startswith("send") else 1),
        lane=pl.lit("comm"),
    )


if __name__ == "__main__":
    main()
