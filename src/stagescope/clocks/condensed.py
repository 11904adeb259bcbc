"""Solves the normal equations of the fit: eliminates the constants of pairs, then factors what is left.

Each constant belongs to the windows of one pair, so the block of all constants is diagonal. Eliminating them first
takes one product, and connects the knots of both clocks of a pair at the times of its windows. Where each clock is
compared with few others, as in pipelines and rings of replicas, or where there are few knots, the factors of what is
left are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array, diags_array  # type: ignore[import-untyped]
from scipy.sparse.linalg import SuperLU, splu  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.clocks.evidence import Bools, Floats, Ints

    Solver = Callable[[Floats], Floats]

MOST_OPERATIONS = 2e9
"""Operations of a factorization, up to which it is used: they take half a second, as much as conjugate gradients do."""
MOST_POSSIBLE = 2e10
"""Operations of a factorization in which all knots of pairs become connected, up to which a first one is tried: they
take 5 s."""


def condensed(
    normal: csc_array, right: Floats, unknowns: tuple[Bools, Ints], order: Ints | None = None
) -> tuple[Floats | None, Ints | None]:
    """Return the solution, for one or several columns, and the order of elimination for later systems.

    There is no solution if finding it would take too long, and no order if the factorization took too long to be
    repeated. `unknowns` states which of them are constants, and the clock of each. `order` is that of an earlier system
    of the same clocks and knots: finding an order takes longer than using it.
    """
    is_constant, clock = unknowns
    constant, other = np.flatnonzero(is_constant), np.flatnonzero(~is_constant)
    knots = normal.tocsr()[other]
    shared, among = knots[:, constant], knots[:, other]
    own = normal.diagonal()[constant]
    if order is None or len(order) != len(other):
        expected, possible = _operations(among, shared, clock[other])
        if expected > MOST_OPERATIONS or possible > MOST_POSSIBLE:
            return None, None
        order = None
    left = (among - shared @ diags_array(1 / own) @ shared.T).tocsc()
    try:
        solve, order = _factors_in_order(left, order)
    except RuntimeError:  # singular, by rounding
        return None, None
    own = own.reshape(-1, *[1] * (right.ndim - 1))
    result = np.empty(right.shape)
    result[other] = solve(right[other] - shared @ (right[constant] / own))
    result[constant] = (right[constant] - shared.T @ result[other]) / own
    return result, order


def by_factors(normal: csc_array, *, in_order: bool = False) -> SuperLU:
    """Return the factors of a symmetric system, whose unknowns may be in the order of elimination already.

    SuperLU merges small columns at the leaves of the elimination tree, which is not done here in an order that was
    found for another system: it doubled the time. Raises RuntimeError if the system is singular.
    """
    how = {"permc_spec": "NATURAL", "relax": 1} if in_order else {"permc_spec": "MMD_AT_PLUS_A"}
    return splu(normal, diag_pivot_thresh=0.0, options={"SymmetricMode": True}, **how)


def _factors_in_order(system: csc_array, order: Ints | None) -> tuple[Solver, Ints | None]:
    """Return a function that solves a symmetric system, and the order of elimination, which is found if there is none.

    No order is returned if the factors have so many entries that they took more than `MOST_OPERATIONS`. Raises
    RuntimeError if the system is singular.
    """
    if order is None:
        factors = by_factors(system)
        least = (factors.nnz / 2) ** 2 / system.shape[0]  # if all columns of a factor have as many entries
        return factors.solve, np.argsort(factors.perm_c) if least <= MOST_OPERATIONS else None
    factors = by_factors(system[order][:, order].tocsc(), in_order=True)

    def solve(right: Floats) -> Floats:
        result = np.empty(right.shape)
        result[order] = factors.solve(right[order])
        return result

    return solve, order


def _operations(among: csr_array, shared: csr_array, clock: Ints) -> tuple[float, float]:
    """Return how many operations the factorization of what is left takes, about, and at most.

    `among` and `shared` are the entries of knots with knots and with constants. The matrix that is left is not formed:
    with many knots per pair, it would be large. The upper limit assumes that all knots of two clocks become connected
    where any do, and takes a factorization with one unknown per clock to find. The estimate is the share of it that is
    connected before the factorization. The real number was a third smaller in a run with pipelines, and up to twelve
    times as large where each clock was compared with many others at a few of the knots.
    """
    found, column = np.unique(clock, return_inverse=True)
    sizes = np.bincount(column).astype(float)
    sums = coo_array(
        (np.ones(len(column)), (column, np.arange(len(column)))), shape=(len(found), len(column))
    ).tocsr()
    met = sums @ shared.astype(bool)  # knots of each clock that each constant connects
    blocks = (sums @ abs(among) @ sums.T + met @ met.T).tocoo()
    between = float((met.sum(axis=0) ** 2).sum()) - float((met.data**2).sum())
    connected = max(float(among.nnz), between + float(sizes @ sizes)) / float(
        sizes[blocks.row] @ sizes[blocks.col]
    )
    apart = blocks.row != blocks.col
    links = coo_array(
        (np.full(apart.sum(), -1.0), (blocks.row[apart], blocks.col[apart])), shape=blocks.shape
    )
    factors = by_factors((links + diags_array(np.full(len(found), len(found) + 1.0))).tocsc())
    in_order = sizes[np.argsort(factors.perm_c)]
    entries = factors.L.tocoo()
    below = np.bincount(entries.col, in_order[entries.row], len(found))
    possible = float(in_order @ below**2)
    return possible * min(1.0, connected), possible
