"""What is decided about a run from all of its recordings together, before their spans become tables.

Which recordings share a clock, which attempt and pipeline are shown, how clocks were slewed, and the tables of ranks
and clocks. The facts about the spans of each recording (facts.py) are enough for that, so it does not matter whether
the spans are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.ingest.recording.attempts import LAST, choose_attempt
from stagescope.ingest.recording.chosen_steps import require_chosen_steps
from stagescope.ingest.recording.clock_domains import assign_clocks, machine_names, rows_of_clocks
from stagescope.ingest.recording.diagnostics import device_notes, run_notes
from stagescope.ingest.recording.pipelines import choose_pipeline, schedule_of
from stagescope.ingest.recording.slews import find_slews, rate_errors_of, without_slew
from stagescope.model import CLOCKS, RANKS
from stagescope.model.clock_groups import machines_of_clocks
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.reader import ReadOptions
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.slews import Slew
    from stagescope.model.diagnostics import Diagnostic


@dataclass(frozen=True)
class Decisions:
    """The recordings of the run that is shown, and what holds for all of them.

    `label` is the pipeline that is shown, None for everything. `group_kinds` are those of the groups of collectives
    that may reduce gradients, None where the spans of all recordings are in memory. `before` and `after` are the
    diagnostics that belong before and after those of the recordings.
    """

    processes: tuple[Process, ...]
    slews: dict[str, Slew]
    label: str | None
    ranks: pl.DataFrame
    clocks: pl.DataFrame
    before: tuple[Diagnostic, ...]
    after: tuple[Diagnostic, ...]
    group_kinds: pl.DataFrame | None = None

    def of(self, processes: Sequence[Process]) -> Decisions:
        """Return the decisions for some of the recordings, with their ranks alone."""
        ranks = self.ranks.filter(pl.col("rank").is_in([process.rank for process in processes]))
        clocks = {process.clock for process in processes}
        slews = {clock: slew for clock, slew in self.slews.items() if clock in clocks}
        return replace(self, processes=tuple(processes), slews=slews, ranks=ranks, before=(), after=())


def decide(
    every: Sequence[Process], lost: Sequence[Diagnostic], options: ReadOptions, *, last: bool = False
) -> Decisions:
    """Return what is decided about a run, with what was lost before in its diagnostics.

    With `last`, the attempt is the last one even if that is not complete. Raises InputError as read_recordings does.
    """
    every, contradictions = assign_clocks(every)
    processes, left_out = choose_attempt(every, LAST if last else options.attempt)
    require_chosen_steps(processes, options.steps)
    slews, slewed = find_slews(processes)
    label, several = choose_pipeline(processes, options.pipeline)
    ranks = _ranks(processes, label)
    # The anchors of a slewed clock are converted like its spans.
    steady = [without_slew(process, slews) for process in processes]
    clocks = conform(
        pl.DataFrame(rows_of_clocks(steady, machines_of_clocks(ranks)), infer_schema_length=None), CLOCKS
    ).with_columns(
        rate_error_ns=pl.col("clock").replace_strict(
            rate_errors_of(slews), default=None, return_dtype=pl.Int64
        )
    )
    used = {process.source for process in processes}
    runs = {process.contents.header.get("run") for process in processes} - {None, ""}
    return Decisions(
        tuple(processes),
        slews,
        label,
        ranks,
        clocks,
        (*lost, *(note for note in contradictions if note.source in used), *left_out, *several, *slewed),
        (*device_notes(process.contents for process in processes), *run_notes(len(runs))),
    )


def _ranks(processes: Sequence[Process], label: str | None) -> pl.DataFrame:
    machines = machine_names(processes)
    return conform(
        pl.DataFrame(
            [_rank_row(process, machines, label) for process in processes], infer_schema_length=None
        ),
        RANKS,
    )


def _rank_row(
    process: Process, machines: dict[tuple[str, str | None], str], label: str | None
) -> dict[str, Any]:
    header = process.contents.header
    coordinates = {name: header.get("parallel", {}).get(name) for name in ("pp", "dp", "tp", "cp", "ep")}
    return {
        "rank": process.rank,
        "machine": machines[process.clock, process.host],
        "device": header.get("device"),
        **coordinates,
        "host": process.host,
        "clock": process.clock,
        "world_size": header.get("world_size"),
        "schedule": schedule_of(process, label),
        "source": process.source,
    }
