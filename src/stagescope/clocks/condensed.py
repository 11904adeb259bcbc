"""Solves the normal equations of the fit by elimination of the constants, and a factorization of what is left.

A constant is in the windows of one pair only, so that the block of all constants is diagonal: eliminating them first
takes one product, and connects the knots of both clocks of a pair at the moments that it has windows for. Where pairs
are few for each clock, such as in rings of replicas, or knots are few, the factors of what is left are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csc_array, diags_array  # type: ignore[import-untyped]
from scipy.sparse.linalg import SuperLU, splu  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.clocks.evidence import Bools, Floats, Ints

    Solver = Callable[[Floats], Floats]

MOST_OPERATIONS = 2e9
"""Estimated operations of a factorization, up to which it is used: they take half a second, as much as conjugate
gradients do."""


def condensed(
    normal: csc_array, right: Floats, unknowns: tuple[Bools, Ints], order: Ints | None = None
) -> tuple[Floats | None, Ints | None]:
    """Return the solution, for one or several columns, and the order of elimination; None if it would take too long.

    `unknowns` has which of them are constants, and the clock of each. `order` is that of an earlier system of the same
    clocks and knots: finding one takes longer than using it.
    """
    is_constant, clock = unknowns
    constant, other = np.flatnonzero(is_constant), np.flatnonzero(~is_constant)
    system = normal.tocsr()
    own = system.diagonal()[constant]
    shared = system[other][:, constant]
    left = (system[other][:, other] - shared @ diags_array(1 / own) @ shared.T).tocsc()
    if order is None or len(order) != len(other):
        if _operations(left, clock[other]) > MOST_OPERATIONS:
            return None, None
        order = None
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

    SuperLU merges small columns at the leaves of the elimination tree. That is of no use in an order that was found for
    another system, and may double the time there. Raises RuntimeError if the system is singular.
    """
    how = {"permc_spec": "NATURAL", "relax": 1} if in_order else {"permc_spec": "MMD_AT_PLUS_A"}
    return splu(normal, diag_pivot_thresh=0.0, options={"SymmetricMode": True}, **how)


def _factors_in_order(system: csc_array, order: Ints | None) -> tuple[Solver, Ints]:
    """Return a function that solves a symmetric system, and the order of elimination, which is found if there is none.

    Raises RuntimeError if the system is singular.
    """
    if order is None:
        factors = by_factors(system)
        return factors.solve, np.argsort(factors.perm_c)
    factors = by_factors(system[order][:, order].tocsc(), in_order=True)

    def solve(right: Floats) -> Floats:
        result = np.empty(right.shape)
        result[order] = factors.solve(right[order])
        return result

    return solve, order


def _operations(system: csc_array, clock: Ints) -> float:
    """Return how many operations the factorization of a system takes, about.

    They are those of a system that has a block of unknowns for each clock, times the share of its entries that are not
    0: known at once, because there are few clocks. At most half more than the real number with random pairs of clocks,
    and twice as many with pipelines.
    """
    found, column = np.unique(clock, return_inverse=True)
    sizes = np.bincount(column).astype(float)
    sums = coo_array(
        (np.ones(len(column)), (column, np.arange(len(column)))), shape=(len(found), len(column))
    )
    blocks = (sums.tocsr() @ abs(system) @ sums.T).tocoo()
    possible = float(sizes[blocks.row] @ sizes[blocks.col])
    if not possible:
        return 0.0
    apart = blocks.row != blocks.col
    links = coo_array(
        (np.full(apart.sum(), -1.0), (blocks.row[apart], blocks.col[apart])), shape=blocks.shape
    )
    factors = by_factors((links + diags_array(np.full(len(found), len(found) + 1.0))).tocsc())
    in_order = sizes[np.argsort(factors.perm_c)]
    entries = factors.L.tocoo()
    below = np.bincount(entries.col, in_order[entries.row], len(found))
    return float(in_order @ below**2) * float(system.nnz) / possible
