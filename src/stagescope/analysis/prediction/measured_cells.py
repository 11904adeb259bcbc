"""Measured costs by stage and micro-batch, for the pipelines and steps from which other schedules are predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.prediction.mean_costs import PAIR
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.prediction.what_if import Measured

    Floats = NDArray[np.float64]

MOST_STEPS = 32
MOST_VALUES = 32_768
"""Steps are sampled evenly if a step times its actions is more than this."""


@dataclass(frozen=True)
class MeasuredCells:
    """Costs in arrays of stage x micro-batch x step; a step is the longest pipeline in it.

    `lasting_ns` and `delay_ns` (launch delays) are by letter, PAIR for overlapped pairs by their first part. `hop_ns`
    is the mean transfer per link that was measured. `window_ns` is the measured length of every step.
    """

    lasting_ns: dict[str, Floats]
    delay_ns: dict[str, Floats]
    hop_ns: dict[int, float]
    window_ns: Floats

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(next(iter(self.lasting_ns.values())))

    def has(self, letter: str) -> bool:
        """Return whether a letter was measured on every stage."""
        return letter in self.lasting_ns

    @cached_property
    def mean_lasting_ns(self) -> dict[str, Floats]:
        """The mean of every letter on every stage."""
        return {letter: cells.mean(axis=(1, 2)) for letter, cells in self.lasting_ns.items()}

    @cached_property
    def mean_delay_ns(self) -> dict[str, Floats]:
        """The mean launch delay of every letter, as an array of stage x 1 x 1."""
        return {letter: cells.mean(axis=(1, 2), keepdims=True) for letter, cells in self.delay_ns.items()}

    def without_delays(self) -> MeasuredCells:
        """Return the same without launch delays."""
        nothing = {letter: np.zeros_like(cells) for letter, cells in self.delay_ns.items()}
        return replace(self, delay_ns=nothing)

    def of_stages(self) -> MeasuredCells:
        """Return the means over micro-batches and steps, as one micro-batch of one step."""
        lasting_ns, delay_ns = (
            {letter: cells.mean(axis=(1, 2), keepdims=True) for letter, cells in named.items()}
            for named in (self.lasting_ns, self.delay_ns)
        )
        return MeasuredCells(lasting_ns, delay_ns, self.hop_ns, self.window_ns.mean(keepdims=True))


def measure_cells(measured: Measured, stages: int, microbatches: int) -> MeasuredCells | None:
    """Return the costs of at most MOST_STEPS counted steps, None if not even forwards were measured on every stage.

    A letter that some stage lacks is left out. An action that is missing in a step costs the mean of its stage.
    """
    picked = _pick_steps(measured, stages * microbatches)
    columns = picked.height
    numbers = np.full(measured.groups.steps.height, -1, dtype=np.int64)
    numbers[picked["group"].to_numpy()] = np.arange(columns)
    of_action = numbers[measured.groups.step_of_action()]
    rows = np.flatnonzero(of_action >= 0)
    table = measured.actions.table.select("kind", "is_pair", "stage", "microbatch")[rows]
    times = np.stack([measured.duration_ns[rows], measured.launch_delay_ns[rows]])
    place = (table["stage"].to_numpy(), table["microbatch"].to_numpy(), of_action[rows])
    lasting: dict[str, Floats] = {}
    delay: dict[str, Floats] = {}
    for letter, chosen in _letters(table).items():
        cells = np.full((2, stages, microbatches, columns), np.nan)
        cells[:, place[0][chosen], place[1][chosen], place[2][chosen]] = times[:, chosen]
        if not np.isnan(cells[0]).all(axis=(1, 2)).any():
            lasting[letter], delay[letter] = _filled(cells)
    if "F" not in lasting and PAIR not in lasting:
        return None
    return MeasuredCells(lasting, delay, measured.mean_costs.hop_ns, picked["window_ns"].to_numpy())  # type: ignore[arg-type]  # a mapping from links


def _letters(table: pl.DataFrame) -> dict[str, NDArray[np.int64]]:
    """Return the rows of every letter."""
    kind, pair = table["kind"], table["is_pair"].to_numpy()
    found = {
        BY_NAME[name].letter: np.flatnonzero((kind == name).to_numpy() & ~pair) for name in kind.unique()
    }
    return {name: rows for name, rows in {**found, PAIR: np.flatnonzero(pair)}.items() if len(rows)}


def _filled(cells: Floats) -> Floats:
    """Return cells with the mean of the stage in those that are missing."""
    if not np.isnan(cells).any():
        return cells
    means = np.nanmean(cells, axis=(2, 3), keepdims=True)
    filled: Floats = np.where(np.isnan(cells), means, cells)
    return filled


def _pick_steps(measured: Measured, size: int) -> pl.DataFrame:
    """Return the longest pipeline of the steps that count, or of an even sample of them: group, window_ns."""
    groups = measured.groups
    steps = groups.steps.with_row_index("group").with_columns(
        window_ns=pl.Series(groups.window_ns(measured.actions.table), dtype=pl.Float64)
    )
    longest = (
        steps.filter(measured.counted)
        .sort("step", "window_ns")
        .group_by("step", maintain_order=True)
        .agg(pl.col("group", "window_ns").last())
    )
    most = int(np.clip(MOST_VALUES // size, 1, MOST_STEPS))
    if longest.height <= most:
        return longest
    sample = np.linspace(0, longest.height - 1, most).round().astype(np.int64)
    return longest.select(pl.all().gather(sample))
