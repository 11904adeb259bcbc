"""Reader of Ascend profiles: databases of torch_npu's and MindSpore's profilers and of msMonitor, one per rank.

Actions are the mstx marks that the guide of pp_chart (msprof-analyze 26.2) puts around forward and backward functions,
in device time. The schedule determines micro-batches and stages (ingest/ascend/naming.py); the actions determine the
messages of the transfers (ingest/ascend/pairing.py). The steps are those of the profiler's STEP_TIME.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.ascend import errors
from stagescope.ingest.ascend.discovery import PATTERNS, choose_profiles, is_profile
from stagescope.ingest.ascend.inferred_coordinates import infer_rank_coordinates
from stagescope.ingest.ascend.machines import clocks_table, machines_of
from stagescope.ingest.ascend.markers import read_marks, read_step_times, with_steps, without_nested
from stagescope.ingest.ascend.metadata import combine_facts, place_ranks, read_facts
from stagescope.ingest.ascend.naming import name_actions
from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.ascend.transfer_spans import name_transfers
from stagescope.ingest.ascend.transfers import marked_transfers, read_transfers, with_peers
from stagescope.ingest.database import Database
from stagescope.ingest.missing_tables import Tables, absent_tables, missing_tables
from stagescope.ingest.processes import Each, read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.shared_groups import SharedGroups
from stagescope.model import RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform, in_order
from stagescope.schedules.spellings import known_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.ascend.metadata import Facts, Group
    from stagescope.vocabulary.errors import InputError


COMPARED_TABLES = (
    "META_DATA", "STEP_TIME", "COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "RANK_DEVICE_MAP", "HOST_INFO",
)  # fmt: skip
"""Tables that a profile may lack, but not if other profiles of the run have them."""

ABSENT_TABLES = {
    "META_DATA": "sizes, groups and the schedule are not declared",
    "STEP_TIME": "actions have no step numbers of the profiler",
    "COMMUNICATION_OP": "only marked transfers are known",
}
"""What it means if no profile of the run has a table."""

MOST_FAULTS = 2


class _Content(NamedTuple):
    """Content of one profile."""

    facts: Facts
    actions: pl.DataFrame
    steps: pl.DataFrame
    transfers: pl.DataFrame
    notes: list[Diagnostic]
    tables: Tables


def read_profiles(paths: Sequence[Path], options: ReadOptions | None = None) -> Timeline:
    """Return the Timeline of all given profiles, which belong to one run; the newest profile per rank.

    A profile that is unreadable, or damaged in part, becomes an error in diagnostics while another is usable. Raises
    InputError if none is usable or none has a mark, and if a layout in the options does not fit the ranks.
    """
    options = options or ReadOptions()
    profiles, notes = choose_profiles(paths)
    ranks = {profile.path: profile.rank for profile in profiles}
    groups: SharedGroups[Group] = SharedGroups()

    def keep(content: _Content) -> _Content:
        options.count(content.actions.height + content.transfers.height)
        shared = {name: groups.of(group) for name, group in content.facts.groups.items()}
        return content._replace(facts=replace(content.facts, groups=shared))

    contents: list[_Content] = []
    if profiles:
        contents, refused = read_each(_read, list(ranks), options.done, Each(ranks), keep=keep)
        notes += [replace(note, rank=ranks[Path(note.source or "")]) for note in refused]
    for path in sorted({*paths} - {profile.path for profile in profiles}):
        options.done(path)
    if not any(content.actions.height for content in contents):
        raise _no_marks(paths, contents)
    notes += missing_tables([content.tables for content in contents], COMPARED_TABLES)
    notes += absent_tables([content.tables for content in contents], ABSENT_TABLES)
    return _timeline(contents, options).with_diagnostics(notes)


def _no_marks(paths: Sequence[Path], contents: Sequence[_Content]) -> InputError:
    """Return the error for profiles without a mark, with what was damaged."""
    for content in contents:
        faults = [note.message for note in content.notes if note.code == "database.damaged"]
        if faults:
            return errors.no_marks_in_damaged(content.tables.source, faults[:MOST_FAULTS])
    return errors.no_marks(paths[0], len(paths))


def _read(path: Path, rank: int) -> _Content:
    """Return the content of one profile; raises InputError where it cannot be opened."""
    with Database(path) as database:
        database.check()
        facts = read_facts(database, rank)
        marks = read_marks(database, rank)
        steps = read_step_times(database, rank)
        transfers = read_transfers(database, facts)
        # Below level 1 there is no table of operations; the marks of torch_npu are the only record.
        if transfers.is_empty():
            transfers = marked_transfers(marks.other, rank)
        notes = [*marks.notes, *database.diagnostics(rank)]
        if marks.actions.is_empty():
            text = "no mark of a forward or backward with a task on the device"
            notes.append(Diagnostic("error", text, str(path), rank, code="marks.none"))
        tables = Tables(str(path), database.tables, rank)
        return _Content(facts, marks.actions, steps, transfers, notes, tables)


def _timeline(contents: Sequence[_Content], options: ReadOptions) -> Timeline:
    facts = [content.facts for content in contents]
    actions, action_notes = _raw_actions(contents)
    declared, fact_notes = combine_facts(facts)
    ranks = _with_schedule(_ranks(facts, declared.world_size), options.schedule or declared.pipeline.schedule)
    places, place_notes = place_ranks(facts, declared, options.layout)
    if places["pp"].null_count() == places.height:
        places, place_notes = infer_rank_coordinates(actions, ranks)
    every = places.join(ranks.select("rank", "clock"), on="rank", how="left")
    given = PipelineInfo(
        options.schedule or declared.pipeline.schedule, options.microbatches or declared.pipeline.microbatches
    )
    named, naming_notes = name_actions(actions, every, given)
    raw = with_peers(
        pl.concat(content.transfers for content in contents), {each.rank: each for each in facts}, places
    )
    transfers, transfer_notes = name_transfers(raw, named, every)
    steps = named.drop_nulls("step").group_by("step", "rank").agg(pl.min("start_ns"), pl.max("end_ns"))
    reading = [note for content in contents for note in content.notes]
    notes = [*reading, *action_notes, *fact_notes, *place_notes, *naming_notes, *transfer_notes]
    return Timeline(
        spans=in_order(pl.concat([named, transfers]), SPANS),
        ranks=conform(ranks.join(places, on="rank", how="left", maintain_order="left"), RANKS),
        steps=conform(steps, STEPS),
        clocks=clocks_table(facts),
        diagnostics=diagnostics_table(notes),
    )


def _raw_actions(contents: Sequence[_Content]) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the raw actions of all ranks with their steps, without nested ones, and diagnostics."""
    actions, nested = without_nested(pl.concat(content.actions for content in contents))
    stepped = with_steps(actions, pl.concat(content.steps for content in contents))
    notes = []
    for frame, severity, code, text in (
        (nested, "info", "marks.nested", "marks of actions inside the mark of another action were omitted"),
        (stepped.filter(pl.col("step").is_null()), "warning", "actions.outside_steps",
         "actions started outside every step of the profile (STEP_TIME); they are kept without a step number"),
    ):  # fmt: skip
        counts = frame.group_by("rank", maintain_order=True).len()
        notes += [
            Diagnostic(severity, text, rank=rank, count=count, code=code)
            for rank, count in counts.iter_rows()
        ]
    return stepped.drop("host_start_ns", "host_end_ns"), notes


def _ranks(facts: Sequence[Facts], world_size: int | None) -> pl.DataFrame:
    """Return the ranks table without coordinates and schedule."""
    machines = machines_of(facts)
    rows = [
        {"rank": each.rank, "machine": machines.get(each.machine), "device": each.device, "host": each.host,
         "clock": each.clock, "world_size": world_size, "source": each.source}
        for each in facts
    ]  # fmt: skip
    columns = ("rank", "machine", "device", "host", "clock", "world_size", "source")
    return pl.DataFrame(rows, schema={name: RANKS.schema[name] for name in columns}).sort("rank")


def _with_schedule(ranks: pl.DataFrame, schedule: str | None) -> pl.DataFrame:
    """Return the ranks with the canonical name of the schedule, null for an unknown spelling."""
    return ranks.with_columns(schedule=pl.lit(known_schedule(schedule), pl.String))


READER = Reader(
    name="ascend",
    patterns=PATTERNS,
    description="Ascend profiles with mstx marks: torch_npu, MindSpore and msMonitor databases",
    recognizes=is_profile,
    read=read_profiles,
)
