"""The codes of diagnostics: stable names that code and tests match, so that messages may be reworded.

A code is ``area.finding`` in lower case: ``clock.unaligned``, ``spans.dropped``. Codes are never reused for another
meaning. docs/diagnostics.md lists them.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """One code, and what a diagnostic with it reports."""

    name: str
    meaning: str


UNCODED = "uncoded"

CODES: tuple[Code, ...] = (
    Code(
        "actions.assumed_names",
        "Actions were found by a common naming pattern, because the caller gave none.",
    ),
    Code("actions.dropped", "Actions without a valid start or end were dropped."),
    Code("actions.inferred", "The schedule annotates no actions; they were inferred from other events."),
    Code("actions.missing", "A rank ran fewer actions than the run declared."),
    Code("actions.none", "A source has no action of a pipeline."),
    Code("actions.on_host", "Actions have no device kernel in the source and are shown at the host's times."),
    Code("actions.with_loss", "Forwards include their loss, because no operator marks where it begins."),
    Code("backwards.unmatched", "Backwards without a forward in the source were dropped."),
    Code("clock.adjusted", "A machine's clock was set during the run."),
    Code("clock.aligned", "How well the clocks of all machines were aligned."),
    Code(
        "clock.inconsistent",
        "The observations of two clocks contradict each other, so the two were not compared.",
    ),
    Code(
        "clock.no_epoch",
        "A source does not state when its clock began, so it cannot be compared with other clocks.",
    ),
    Code(
        "clock.not_shared",
        "Every rank counts from its own origin; times of different ranks cannot be compared.",
    ),
    Code("clock.outliers", "Observations with inconsistent timestamps were excluded from clock alignment."),
    Code(
        "clock.pipeline_unaligned", "The machines of a pipeline are not on one clock, so it is not measured."
    ),
    Code("clock.unaligned", "The clocks of some machines could not be aligned."),
    Code(
        "clock.wall",
        "Several machines are merged by their wall clocks; the offsets between them are unknown.",
    ),
    Code("config.missing", "A run's configuration file is missing or unusable."),
    Code("database.damaged", "A part of a profiler's database could not be read."),
    Code("database.log_skipped", "A database's write-ahead log could not be read."),
    Code("events.dropped", "Events of a trace could not be read and were dropped."),
    Code("events.out_of_range", "Events with an impossible timestamp were dropped."),
    Code("input.not_read", "A file or format that was found in a directory could not be read."),
    Code("input.other_run", "Files that belong to another run were not read."),
    Code("input.truncated", "A file ends early; everything before the cut was read."),
    Code("iterations.dropped", "An iteration could not be read and was dropped."),
    Code(
        "kernels.other_stream",
        "Kernels of actions ran on other streams than the action's own and are not shown.",
    ),
    Code("kernels.unlaunched", "Kernels without a recorded launch belong to no action."),
    Code("memory.reserved", "The most memory that the framework reserved, per rank."),
    Code("microbatches.assumed", "Micro-batches were numbered in the order in which the actions ran."),
    Code("pairs.not_split", "Overlapped pairs are shown as two actions at the same time."),
    Code("ranges.open", "Ranges that were still open at the end of the report were dropped."),
    Code("ranks.assumed", "No source states the ranks; they were numbered in the order of the files."),
    Code("ranks.missing", "Ranks that the run declared have no recording."),
    Code("reader.unusable", "A reader that another package registered cannot be used."),
    Code("schedule.unknown", "The caller named a schedule that stagescope does not know."),
    Code("spans.reversed", "Spans that end before they start were dropped."),
    Code("stages.contradicted", "The caller's layout contradicts the coordinates that the files state."),
    Code("stages.inferred", "The stages were inferred from the path of micro-batch 0."),
    Code("stages.unknown", "The stages are unknown and cannot be inferred."),
    Code("steps.assumed", "No span has a step, so all spans are taken as step 0."),
    Code("steps.evaluation", "Steps without backwards are evaluations and not counted as training steps."),
    Code("steps.missing", "Steps that other ranks have are missing."),
    Code("steps.slow_first", "The first step took much longer than the others and is not in the totals."),
    Code("steps.unknown", "Nothing marks where steps begin, so every micro-batch is shown as a step."),
    Code(
        "transfers.no_direction",
        "Transfers were launched outside of any range, so their direction is unknown.",
    ),
    Code("transfers.not_1f1b", "Transfers match no whole step of 1F1B between two marks."),
    Code("transfers.without_action", "Transfers that belong to no action were dropped."),
    Code(UNCODED, "A diagnostic without a code of its own, as third-party readers make."),
    Code("waits.reversed", "Waits that end before they start were dropped."),
)
"""Every code that stagescope itself uses, sorted by name."""

BY_NAME: dict[str, Code] = {code.name: code for code in CODES}
