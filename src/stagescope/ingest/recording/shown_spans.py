"""What the spans of one recording show about a whole run: groups of collectives, and which stage its rank has.

Where a run is surveyed (survey.py), these few spans are kept of each recording.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.recording.columns import Columns
from stagescope.ingest.recording.facts import IS_ACTION, IS_COLLECTIVE, are_placed, facts_of, of_kinds
from stagescope.ingest.recording.pipelines import is_of_pipeline
from stagescope.ingest.recording.reductions import MOST_BYTES_OF_VALUES, reducing_groups
from stagescope.ingest.recording.span_tables import Records
from stagescope.model.collectives import SEPARATOR
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.ingest.recording.process import Process

GROUPS = {"group": pl.String, "rank": pl.Int32, "may_reduce": pl.Boolean}
IS_FIRST_MICROBATCH = of_kinds("forward", "backward", "backward_input")


class Shown(NamedTuple):
    """What is known of a run when its files are surveyed once more: which of their spans are shown, and what matters.

    `label` is the pipeline that is shown, None for all. With `all_evidence`, the spans that show stages are found in
    every recording, also if it states its own ones.
    """

    label: str | None = None
    all_evidence: bool = False


def with_shown_spans(process: Process, label: str | None) -> Process:
    """Return a recording with the spans of one pipeline alone, and the facts about them; None for all."""
    if label is None:
        return process

    def of_pipeline(spans: Columns) -> Columns:
        return spans.where(is_of_pipeline(process, spans["step"], label))

    count = sum(len(of_pipeline(spans)) for spans in process.contents.blocks())
    contents = process.contents.with_changed_spans(of_pipeline, count)
    return replace(process, contents=contents, facts=facts_of(contents))


def different_collectives(process: Process, place: int) -> list[Records]:
    """Return the collectives of a recording, one of those alike: it may have millions of them."""
    found: list[Records] = []
    known = np.empty(0, np.int64)
    for spans in process.contents.blocks():
        own = np.flatnonzero(IS_COLLECTIVE[spans["kind"]] & (spans["name"] > 0))
        if not len(own):
            continue
        name, kind = spans["name"][own].astype(np.int64), spans["kind"][own].astype(np.int64)
        is_large, has_step = spans["bytes"][own] > MOST_BYTES_OF_VALUES, spans["step"][own] != NONE
        numbers, first = np.unique((((name << 8) | kind) << 2) | (2 * is_large + has_step), return_index=True)
        is_new = ~np.isin(numbers, known)
        if is_new.any():
            known = np.union1d(known, numbers)
            found.append(_records(process, spans, own[np.sort(first[is_new])], place))
    return found


def groups_of(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the groups of some collectives, and whether they may reduce gradients."""
    parts = pl.col("name").str.splitn(SEPARATOR, 2).struct.field("field_1")
    named = collectives.select("rank", group=parts).drop_nulls().unique(maintain_order=True)
    found = ((reducing_groups(collectives), True), (named, False))
    return pl.concat(
        each.select("group", "rank", may_reduce=pl.lit(value=may_reduce)) for each, may_reduce in found
    )


def evidence_of(process: Process, place: int, *, always: bool) -> list[Records]:
    """Return the spans that `find_placement` needs: nothing where every span has its stage, unless `always`."""
    if not (always or process.facts.has_open_stages):
        return []
    found: list[Records] = []
    is_known = np.zeros(3, np.bool_)
    most_chunk = -np.inf
    for spans in process.contents.blocks():
        is_action = IS_ACTION[spans["kind"]]
        is_open = are_placed(spans) & (spans["stage"] == NONE)
        chosen = IS_FIRST_MICROBATCH[spans["kind"]] & (spans["microbatch"] == 0)
        for number, each in enumerate(
            (is_action, is_open, is_action & is_open & (spans["microbatch"] != NONE))
        ):
            if not is_known[number]:
                chosen[np.flatnonzero(each)[:1]] = True
                is_known[number] = each.any()
        others = np.flatnonzero(spans["kind"] != STEP_CODE)
        if len(others) and (chunk := int(spans["chunk"][others].max())) > most_chunk:
            most_chunk = chunk
            chosen[others[spans["chunk"][others].argmax()]] = True
        found.append(_records(process, spans, np.flatnonzero(chosen), place))
    return found


def _records(process: Process, spans: Columns, rows: npt.NDArray[np.intp], place: int) -> Records:
    """Return some records of a process, on its own clock, with its place in the survey as their rank."""
    own = Columns({name: column[rows] for name, column in spans.arrays.items()}, len(rows))
    return Records(own, np.arange(len(rows)), place, process.contents.names, 0)
