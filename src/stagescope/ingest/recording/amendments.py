"""What is found about the spans of a recording together with those of others, to be applied where they are read again.

Which action a plain transfer belongs to depends on the rank at its other end, and the steps of a loop that marks none
on all ranks. Both are found from a few columns of some spans (settled_spans.py), and wait in files, by the number of
each record in its recording. They are read with the records, a block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.recording.columns import Columns
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from stagescope.ingest.recording.row_blocks import RowBlocks
    from stagescope.ingest.recording.slews import Slew

    Array = npt.NDArray[Any]

DROPPED = "is_dropped"


@dataclass(frozen=True)
class Amendments:
    """Files with what is known of the spans of one recording.

    `changes` have tables with the key record and the columns of SPANS records that they replace; records that `DROPPED`
    marks are left out. `begun` has the start and the number of each step, for spans that no table
    mentions, and `firsts` the first micro-batch of each step, from which those of all spans are counted. Micro-batches
    in `changes` are counted already. `slew` is that of the clock which the starts of steps are on.
    """

    changes: tuple[RowBlocks, ...] = ()
    begun: Path | None = None
    firsts: Path | None = None
    slew: Slew | None = None
    dropped: int = 0

    def amended(self, blocks: Iterator[Columns]) -> Iterator[Columns]:
        """Yield the spans of a recording, which is read in blocks, with what is known of them. Raises OSError."""
        begun = None if self.begun is None else _numbers(pl.read_ipc(self.begun), "start_ns", "step")
        firsts = None if self.firsts is None else _numbers(pl.read_ipc(self.firsts), "step", "first")
        begins = 0
        for block in blocks:
            arrays = dict(block.arrays)
            ends = begins + len(block)
            changes = [_Change.of(each.within(begins, ends), begins) for each in self.changes]
            if begun is not None:
                arrays["step"] = self._steps(block, begun)
            for change in changes:
                if "microbatch" not in change.columns:
                    change.apply(arrays)
            if firsts is not None:
                arrays["microbatch"] = _counted(arrays, firsts)
            is_kept = np.ones(len(block), np.bool_)
            for change in changes:
                if "microbatch" in change.columns:
                    change.apply(arrays)
                is_kept[change.dropped] = False
            yield Columns(arrays, len(block)).where(is_kept)
            begins = ends

    def _steps(self, block: Columns, begun: tuple[Array, Array]) -> Array:
        """Return the step of each record: the last one that had begun; markers of steps keep theirs."""
        starts_ns, steps = begun
        start_ns = block["start_ns"] if self.slew is None else self.slew.removed(block["start_ns"])
        place = np.searchsorted(starts_ns, start_ns, side="right") - 1
        found = np.where(place >= 0, steps[place] if len(steps) else NONE, NONE)
        kept: Array = np.where(block["kind"] == STEP_CODE, block["step"], found).astype(np.int32)
        return kept


class _Change(NamedTuple):
    """The places of records in a block, the values to put there, and the places of those that are left out."""

    places: Array
    columns: dict[str, Array]
    dropped: Array

    @classmethod
    def of(cls, table: pl.DataFrame, begins: int) -> _Change:
        """Return the change that a table describes, of a block whose first record has the number `begins`."""
        is_dropped = table[DROPPED] if DROPPED in table.columns else pl.repeat(False, len(table), eager=True)
        kept = table.filter(~is_dropped)
        columns = {name: kept[name].to_numpy() for name in kept.columns if name not in ("record", DROPPED)}
        places = table["record"].cast(pl.Int64) - begins
        return cls(places.filter(~is_dropped).to_numpy(), columns, places.filter(is_dropped).to_numpy())

    def apply(self, arrays: dict[str, Array]) -> None:
        """Put the values into a block of records."""
        for name, values in self.columns.items():
            arrays[name] = arrays[name].copy()
            arrays[name][self.places] = values


def _numbers(table: pl.DataFrame, key: str, value: str) -> tuple[Array, Array]:
    ordered = table.drop_nulls([key, value]).sort(key, maintain_order=True)
    return ordered[key].to_numpy(), ordered[value].to_numpy()


def _counted(arrays: dict[str, Array], firsts: tuple[Array, Array]) -> Array:
    """Return micro-batches counted from the first one of their step."""
    steps, first = firsts
    number, step = arrays["microbatch"], arrays["step"]
    place = np.minimum(np.searchsorted(steps, step), max(len(steps) - 1, 0))
    is_known = (steps[place] == step) & (number != NONE) if len(steps) else np.zeros(len(step), np.bool_)
    counted: Array = np.where(is_known, number - first[place], number).astype(np.int32)
    return counted
