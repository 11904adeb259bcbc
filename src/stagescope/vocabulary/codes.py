"""Codes of diagnostics: stable names for code and tests to match, so that messages may be reworded.

A code is ``area.finding`` in lower case: ``clock.unaligned``, ``spans.dropped``. A code is never reused with another
meaning. docs/diagnostics.md lists them.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """One code, and what a diagnostic with it reports."""

    name: str
    meaning: str


CODES: tuple[Code, ...] = (
    Code("actions.ambiguous", "Actions next to missing ones match several micro-batches."),
    Code(
        "actions.assumed_names",
        "Actions were found by a common naming pattern, because the caller gave none.",
    ),
    Code("actions.contain_receive", "Marked actions contain the wait for their own input."),
    Code(
        "actions.cyclic", "Dependencies form a cycle with the order of the ranks and are left out of replays."
    ),
    Code("actions.dropped", "Actions without a valid start or end were dropped."),
    Code(
        "actions.duplicate",
        "An action was recorded more than once in a step, so its dependencies are ambiguous.",
    ),
    Code(
        "actions.evaluation", "Forwards belong to evaluations: they have no step and are not in any window."
    ),
    Code("actions.host", "Actions are only known as launches on the host lane and are not analyzed."),
    Code("actions.in_graphs", "Actions inside CUDA graphs were taken from the names of their kernels."),
    Code("actions.inferred", "The schedule annotates no actions; they were inferred from other events."),
    Code("actions.missing", "A rank ran fewer actions than the run declared."),
    Code("actions.missing_producer", "An action needs the result of an action that was not recorded."),
    Code("actions.no_step", "Actions have no step and are not in any window."),
    Code("actions.none", "A source has no action of a pipeline."),
    Code("actions.numbered_by_count", "Actions are numbered by counting, because no schedule is known."),
    Code("actions.on_host", "Actions have no device kernel in the source and are shown at the host's times."),
    Code(
        "actions.only_parts",
        "Only parts of actions are named, without micro-batch or stage: the bubble is unknown.",
    ),
    Code("actions.outside_steps", "Actions started outside every recorded step."),
    Code(
        "actions.unidentified", "No schedule matches the order of the actions, and counting them is not safe."
    ),
    Code("actions.unmarked", "Sends and receives were recorded, but no forward or backward."),
    Code("actions.unplaced", "Actions have no stage or micro-batch and are not analyzed."),
    Code("actions.with_loss", "Forwards include their loss, because no operator marks where it begins."),
    Code("actions.zero_length", "Actions have no duration and are not compared with others."),
    Code("ascend.older_profile", "An older profile of the same rank was ignored."),
    Code("attempts.several", "A run was restarted or recorded several times; one attempt is shown."),
    Code("backwards.unmatched", "Backwards without a forward in the source were dropped."),
    Code("chart.rank_not_written", "The pipeline chart of a rank could not be written."),
    Code(
        "chart.shared_operation",
        "Several messages share an operation, for which only one arrow can be drawn.",
    ),
    Code("clock.adjusted", "A machine's clock was set during the run."),
    Code("clock.aligned", "How well the clocks of all machines were aligned."),
    Code(
        "clock.assumed_shared", "The machines are not recorded, so all ranks are assumed to share one clock."
    ),
    Code(
        "clock.causality",
        "Actions started before their input was computed: clocks or labels are slightly off.",
    ),
    Code(
        "clock.collectives",
        "Collectives were not used for clock alignment: ranks do not agree on their numbers.",
    ),
    Code("clock.contradictory", "Times contradict another clock of the same file: a clock was adjusted."),
    Code(
        "clock.drift_remains", "The fixed offsets of an archive leave the drift of the clocks within the run."
    ),
    Code("clock.error_unknown", "The offset between clocks has an unknown error, which limits a comparison."),
    Code(
        "clock.inconsistent",
        "The observations of two clocks contradict each other, so the two were not compared.",
    ),
    Code(
        "clock.namespaces",
        "Processes of one boot have different monotonic clocks, as in containers with their own time namespace.",
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
    Code("clock.resolution", "Timestamps have a coarse resolution."),
    Code(
        "clock.steps_apart", "Steps of different machines hardly overlap: their clocks may differ by a step."
    ),
    Code("clock.slewed", "A machine's clock ran at changing rates, which were removed from its timestamps."),
    Code(
        "clock.uncertain",
        "Clocks may be off by more than half the window, so idle time is not explained.",
    ),
    Code("clock.unaligned", "The clocks of some machines could not be aligned."),
    Code(
        "clock.wall",
        "Several machines are merged by their wall clocks; the offsets between them are unknown.",
    ),
    Code(
        "collectives.window",
        "A trace ends before collectives that other ranks of their group recorded.",
    ),
    Code(
        "comparison.differs", "Two runs differ in schedule, size or kinds, which limits what can be compared."
    ),
    Code(
        "comparison.excluded_steps", "Steps that are not in the totals of a run are left out of a comparison."
    ),
    Code("config.missing", "A run's configuration file is missing or unusable."),
    Code("counters.dropped", "The recorder dropped values of counters."),
    Code("database.contradictory", "Rows of a database refer to rows that it does not have."),
    Code("database.damaged", "A part of a profiler's database could not be read."),
    Code("database.log_skipped", "A database's write-ahead log could not be read."),
    Code("database.table_absent", "No database of the run has a table."),
    Code("database.table_missing", "A database lacks a table that others of the run have."),
    Code("device.clock_error", "Precision of device times on the clocks of their hosts."),
    Code("device.host_times", "Device actions have host times, which are those of their launch."),
    Code("events.damaged", "Events of a trace are truncated or damaged and were omitted."),
    Code("events.dropped", "Events of a trace could not be read and were dropped."),
    Code(
        "events.not_merged", "Events of original traces cannot be drawn in a merged trace, and were left out."
    ),
    Code("events.out_of_range", "Events without a timestamp, or with an impossible one, were dropped."),
    Code("events.repeated", "Events that are in a trace more than once were used once."),
    Code("events.unpaired", "Events begin or end slices without the other event of their pair."),
    Code("file.damaged", "A file is damaged, which may have cost a part of it."),
    Code("file.unreadable", "A file could not be read and was left out."),
    Code("files.missing", "Files of a bounded recording are missing."),
    Code("frames.contradictory", "Frames have the number of another frame and were skipped."),
    Code("frames.damaged", "Damaged bytes of a recording were skipped."),
    Code("frames.missing", "Frames of a recording are missing."),
    Code("frames.repeated", "Frames are in a recording several times and were used once."),
    Code("frames.truncated", "The last frame of a recording is truncated."),
    Code("frames.unknown", "Frames of an unknown type or with invalid content were skipped."),
    Code(
        "framework.partial",
        "A part of what a framework did is not recorded, such as what functions show that its version lacks.",
    ),
    Code(
        "framework.refused",
        "A version of a framework does not fit the recorder, so nothing of it was recorded.",
    ),
    Code("header.invalid", "Values in the header of a recording are impossible and were ignored."),
    Code("header.missing", "The header and so the rank of a recording are missing."),
    Code("hooks.disabled", "The hooks of a framework were turned off after repeated errors."),
    Code("hooks.failed", "Hooks of the recorder failed, so actions may be missing."),
    Code("ideal.extra_actions", "Actions are not part of the recognized or declared schedule."),
    Code("ideal.unknown", "No ideal schedule is known to compare the run with."),
    Code("input.not_read", "A file or format that was found in a directory could not be read."),
    Code("input.other_run", "Files that belong to another run were not read."),
    Code("input.truncated", "A file ends early; everything before the cut was read."),
    Code("iterations.dropped", "An iteration could not be read and was dropped."),
    Code("jobs.damaged", "Lines of jobs are truncated or overwritten: their jobs are missing."),
    Code("jobs.end_before_start", "Jobs of Paddle's executor end before they start and were omitted."),
    Code("jobs.host_times", "Jobs of Paddle's executor have times of the host instead of the device."),
    Code("jobs.incomplete", "Jobs of Paddle's executor have only one of their two timestamps."),
    Code("jobs.launch_times", "Jobs of Paddle's executor have only the time of their launch."),
    Code("jobs.none", "A file has no job of Paddle's executor, so its rank is not shown."),
    Code("jobs.outside_steps", "Jobs of Paddle's executor are outside every recorded step."),
    Code("jobs.repeated", "Jobs are repeated and were used once."),
    Code("jobs.without_times", "Jobs of Paddle's executor have no times and were omitted."),
    Code(
        "kernels.other_stream",
        "Kernels of actions ran on other streams than the action's own and are not shown.",
    ),
    Code("kernels.unlaunched", "Kernels without a recorded launch belong to no action."),
    Code("launches.several", "Several launches are appended to the same files."),
    Code("layout.changed", "The pipeline layout changed between the launches in one file."),
    Code("layout.inferred", "Pipeline ranks are inferred from the times."),
    Code("layout.invalid", "The declared parallel sizes are impossible and were ignored."),
    Code("layout.unknown", "The pipeline layout is neither recorded nor determined by the times."),
    Code("layout.unknown_order", "The recorded pipeline groups match no known order of ranks."),
    Code("lines.damaged", "Lines are truncated or overwritten and were omitted."),
    Code(
        "links.early_send",
        "Messages were sent before the receive was posted and are excluded from link statistics.",
    ),
    Code("layers.mismatch", "The given numbers of layers do not fit the stages of the run."),
    Code("marks.nested", "Marks of actions inside the mark of another action were omitted."),
    Code("marks.none", "A profile has no mark of a forward or backward with a task on the device."),
    Code("marks.surplus", "Marks that the schedule does not have."),
    Code("marks.unrecognized", "Marks that are not pipeline actions were ignored."),
    Code("marks.without_task", "Marks of actions without a task on the device were omitted."),
    Code("memory.reserved", "The most memory that the framework reserved, per rank."),
    Code("messages.missing_receive", "Messages between actions without a certain receive."),
    Code("messages.missing_send", "Messages between actions without a certain send."),
    Code("messages.reversed", "Messages that arrive before they were sent are drawn without arrows."),
    Code("messages.unaligned", "Messages between machines with unaligned clocks are drawn without arrows."),
    Code("metadata.impossible", "A file declares a size that no run has, which was ignored."),
    Code("metadata.contradictory", "Ranks declare different values; that of most ranks is used."),
    Code("microbatches.assumed", "Micro-batches were numbered in the order in which the actions ran."),
    Code(
        "microbatches.contradictory",
        "The declared number of micro-batches differs from the recorded actions.",
    ),
    Code(
        "microbatches.counted", "The number of micro-batches per step was counted, because none is declared."
    ),
    Code("pairs.not_split", "Overlapped pairs are shown as two actions at the same time."),
    Code("picture.english", "A picture is in English, because no installed font has Chinese characters."),
    Code("picture.no_font", "A picture has no text, because no suitable font is installed."),
    Code("picture.not_drawn", "A picture omits spans of some kinds."),
    Code("picture.one_step", "A picture shows one of several steps."),
    Code("picture.some_ranks", "A picture shows only the selected ranks."),
    Code("pipelines.ambiguous", "Data-parallel replicas cannot be separated, and count as one pipeline."),
    Code("pipelines.inferred", "Data-parallel replicas were inferred from actions that several ranks ran."),
    Code("pipelines.none", "Nothing in the run is a pipeline: one stage and one micro-batch per step."),
    Code("pipelines.several", "The processes ran several pipelines, of which one is shown."),
    Code("predictions.impossible", "Predictions of a step time of zero or less were omitted."),
    Code("ranges.open", "Ranges that were still open at the end of the report were dropped."),
    Code("ranges.unpaired", "NVTX ranges have only one of their two ends."),
    Code("rank.assumed", "The rank is not recorded; the only file is assumed to be rank 0."),
    Code(
        "rank.by_file_order", "Ranks are numbered in the order of the files, because their names have none."
    ),
    Code("rank.from_content", "The rank is not in the file name, but in the content or in other files."),
    Code("rank.missing", "Ranks below the highest one have no file."),
    Code("rank.unknown", "The rank of a file is not recorded, so the file was ignored."),
    Code("ranks.assumed", "No source states the ranks; they were numbered in the order of the files."),
    Code("ranks.maybe_missing", "The last recorded stage waits like one that has a successor."),
    Code(
        "ranks.missing",
        "Ranks that the run declared, or that others exchange messages with, have no recording.",
    ),
    Code("ranks.missing_step", "A rank has no action in a step that its pipeline recorded."),
    Code("ranks.no_actions", "Ranks have no forward or backward action."),
    Code("ranks.windows", "A trace is a later profiled window of a rank, and was joined with its first one."),
    Code("reader.unusable", "A reader that another package registered cannot be used."),
    Code("recording.no_end", "A recording has no end frame: its process was killed or is still running."),
    Code("replicas.none", "No data-parallel replicas run the same stages, so stragglers cannot be measured."),
    Code("recording.beside", "A process recorded beside another one with the same rank and is not shown."),
    Code("recording.copy", "A file is a copy of another recording or trace and was ignored."),
    Code("records.missing", "Counters or clock readings that a process had stored are missing."),
    Code("records.surplus", "A recording has more counters or clock readings than its process stored."),
    Code("rows.incomplete", "Rows without a required value were omitted."),
    Code("rows.repeated", "Rows that are in a table more than once were used once."),
    Code("runs.several", "The recordings have different run ids."),
    Code(
        "samples.skipped",
        "Ranks, stages and links of a very long run were compared in only some of its steps.",
    ),
    Code("samples.too_few", "There are too few steps and micro-batches for statistics."),
    Code("schedule.mismatch", "Steps differ too much from the schedule to number their actions."),
    Code("schedule.unknown", "The caller named a schedule that stagescope does not know."),
    Code("schedules.untested", "Other schedules were not tested as improvements."),
    Code("schedule.unrecorded", "A schedule of a framework ran that the recorder cannot record."),
    Code(
        "slices.beside_export",
        "Slices of other tools, in a trace with an export of stagescope, were not read.",
    ),
    Code("slices.trimmed", "Slices that overlap the next one within rounding are drawn up to its start."),
    Code("slices.unended", "Slices without a beginning or an end in the trace were dropped."),
    Code("spans.discarded", "The oldest spans were discarded to keep a recording within its bounds."),
    Code("spans.dropped", "The recorder dropped spans."),
    Code("spans.missing", "Spans that a process had stored are missing."),
    Code("names.missing", "Spans or counters have names that are missing in their recording."),
    Code("spans.reversed", "Spans that end before they start were dropped."),
    Code("spans.reversed_drawn", "Spans that end before they start are drawn with zero length."),
    Code("spans.surplus", "A recording has more spans than its process stored."),
    Code("spans.unknown_kind", "Spans of an unknown kind are shown as other."),
    Code("stages.contradicted", "The caller's layout contradicts the coordinates that the files state."),
    Code("stages.inferred", "The stages were inferred from the path of micro-batch 0."),
    Code("stages.missing", "No recorded rank runs a stage, although later stages ran."),
    Code("stages.unknown", "The stages of all or some ranks are unknown and cannot be inferred."),
    Code("steps.assumed", "No span has a step, so all spans are taken as step 0."),
    Code("steps.contradictory", "The announced numbers or count of steps cannot be right."),
    Code(
        "steps.divided",
        "Nothing marks the steps of marked actions; they end with the optimizer, or at a repeated action.",
    ),
    Code("steps.evaluation", "Steps without backwards are evaluations and not counted as training steps."),
    Code("steps.incomplete", "Actions of some stages are missing in a step."),
    Code("steps.missing", "Steps that other ranks have are missing."),
    Code("steps.numbered_from_0", "The first training step is not recorded, so steps are numbered from 0."),
    Code("steps.partial_iteration", "Steps of an iteration that is incomplete are not in the totals."),
    Code(
        "steps.reference",
        "What is usual in a large run, its schedule and the predictions are those of a sample of its steps.",
    ),
    Code("steps.selected", "Only some steps of the run were read, as requested."),
    Code("steps.skipped", "Steps were left out of the totals as requested."),
    Code("steps.slow_first", "The first step took much longer than the others and is not in the totals."),
    Code("steps.too_many", "A stored run has more steps than fit into memory; some of them were analyzed."),
    Code("steps.uneven_passes", "Without recorded step numbers, ranks ran different numbers of passes."),
    Code("steps.unknown", "Nothing marks where steps begin, so every micro-batch is shown as a step."),
    Code("steps.without_actions", "Steps of a framework ended without a recorded action."),
    Code("store.damaged", "A file of a stored run is missing or damaged, and so are its rows."),
    Code("store.source_changed", "Files that a run was stored from have changed since."),
    Code("trace.mapped", "How many slices of a trace of another tool are used, and by which mapping."),
    Code(
        "trace.shifted",
        "A trace was shifted, because its format cannot represent times before the Unix epoch.",
    ),
    Code(
        "trace.unmapped", "Slices of a trace of another tool that match no rule of the mapping are not used."
    ),
    Code(
        "timestamps.contradictory",
        "Actions started long before their input was computed, so idle time is not explained.",
    ),
    Code(
        "timestamps.implausible",
        "Timestamps are far from everything else that was recorded, and what they belong to was dropped.",
    ),
    Code("timestamps.rounded", "Times are in floating point and have lost their last digits."),
    Code("transfers.contradictory", "Receives end before the matching sends start."),
    Code(
        "transfers.no_direction",
        "Transfers were launched outside of any range, so their direction is unknown.",
    ),
    Code("transfers.not_1f1b", "Transfers match no whole step of 1F1B between two marks."),
    Code("transfers.not_recorded", "Transfers between ranks were not recorded and count as taking no time."),
    Code(
        "transfers.overlapped_order",
        "Messages of overlapped actions are identified by the order in which they are sent.",
    ),
    Code("transfers.unmatched", "Transfers match several messages, or none."),
    Code(
        "transfers.unplaced", "Sends and receives outside of schedules cannot be assigned to marked actions."
    ),
    Code("transfers.unplaced", "Transfers show no actions, because the rank and its pipeline are unknown."),
    Code("transfers.without_action", "Transfers that belong to no action were dropped."),
    Code("transfers.without_times", "Transfers have no times and were omitted."),
    Code("values.impossible", "Ranks, steps, stages or sizes are negative or too large, and were ignored."),
    Code("viewer.analysis_omitted", "A table is shown in parts, without alignment and analysis."),
    Code("viewer.kernels_omitted", "There are too many kernels for the page in a file, which shows none."),
    Code("viewer.layers_omitted", "A large stored run is shown without what has a row for every action."),
    Code("viewer.links_omitted", "The page has no dependency links, because the parallel layout is unknown."),
    Code("viewer.slack_omitted", "The page has no slack, because the run has too many actions."),
    Code("viewer.spans_reversed", "Spans that end before they start are drawn without length."),
    Code("viewer.times_rounded", "Times far from the start of the run are shown rounded."),
    Code("waits.incomplete", "Waits without a start or an end are not drawn."),
    Code("waits.reversed", "Waits that end before they start were dropped."),
    Code("weights.unnumbered", "Weight gradients of a dump cannot be assigned to micro-batches."),
)
"""Every code that stagescope itself uses, sorted by name."""

BY_NAME: dict[str, Code] = {code.name: code for code in CODES}
