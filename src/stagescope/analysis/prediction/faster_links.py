"""The lags of transfers if slow links were as fast as others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis

    Floats = NDArray[np.float64]
    SlowLink = tuple[int, int, str | None, float]
    """Sender, receiver, direction (None: both ways between them), and excess of a link."""


def faster_links(
    actions: Actions, basis: ReplayBasis, lag_ns: Floats | NDArray[np.int64], links: Sequence[SlowLink]
) -> Floats:
    """Return lags without the excess of links."""
    needs, rank = actions.needs, actions.table["rank"].to_numpy()
    sender, receiver = rank[needs["needs"].to_numpy()], rank[needs["action"].to_numpy()]
    direction = needs["direction"].cast(pl.String)
    every = basis.without_reductions(lag_ns).astype(np.float64)
    faster, sends = every[: needs.height].copy(), basis.plan.sends
    lasting = np.zeros(needs.height)
    lasting[sends.need] = sends.lasting_ns
    for source, target, kind, excess in links:
        on_link = (sender == source) & (receiver == target)
        if kind is None:
            on_link |= (sender == target) & (receiver == source)
        else:
            on_link &= (direction == kind).to_numpy()
        faster[on_link & (faster > 0)] /= 1 + excess
        lasting[on_link] /= 1 + excess
    gates_ns = every[needs.height + len(sends.need) :]
    return np.asarray(basis.reduced(np.concatenate([faster, lasting[sends.need], gates_ns])))
