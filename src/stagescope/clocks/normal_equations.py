"""Solves the normal equations of the fit: directly, or by conjugate gradients where factors would fill in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array, csc_array  # type: ignore[import-untyped]
from scipy.sparse.linalg import LinearOperator, cg, splu  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Floats, Ints

MOST_DIRECT = 3_000
"""Unknowns up to which a direct sparse factorization is faster than conjugate gradients."""
MOST_ITERATIONS = 100
"""Of conjugate gradients, after which a factorization is tried: they converge in 50 on random graphs of machines."""
CLOSE, MOST_REFINEMENTS = 1e-8, 300
"""Relative residual at which the iterations with constants end, and how many there may be: a hundred are usual."""


def factorized(normal: csc_array, right: Floats) -> Floats:
    """Return the solution, for one or several columns, by a direct factorization."""
    if len(right) < MOST_DIRECT:
        return np.asarray(splu(normal).solve(right))
    return np.asarray(_factors(normal).solve(right))


def _factors(normal: csc_array) -> Any:
    return splu(normal, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def with_constants(normal: csc_array, right: Floats, is_constant: Bools) -> Floats | None:
    """Return the solution of a large system with many knots by conjugate gradients; None if they do not converge soon.

    The constant of a pair is in all of its windows, so that eliminating it connects all knots of both clocks: with 250
    clocks, 48 knots and 6,914 pairs, factors took 12 s. Those without that connection, which are the preconditioner
    here, take 1.8 s, and 75 iterations as long.
    """
    if len(right) < MOST_DIRECT or not is_constant.any():
        return None
    entries = normal.tocoo()
    own = is_constant[entries.row] == is_constant[entries.col]
    apart = coo_array((entries.data[own], (entries.row[own], entries.col[own])), shape=normal.shape).tocsc()
    preconditioner = LinearOperator(normal.shape, _factors(apart).solve)
    found, failed = cg(normal, right, rtol=CLOSE, maxiter=MOST_REFINEMENTS, M=preconditioner)
    return None if failed else np.asarray(found)


def iterated(normal: csc_array, right: Floats, clock: Ints) -> Floats | None:
    """Return the solution of a large system by conjugate gradients; None if they do not converge soon.

    They are preconditioned with each clock's own block. On a random graph of 1,000 machines the factors of a direct
    solution fill in: 4 s per solution, and 0.1 s this way. Where machines are in rings, such as replicas that are
    compared with their neighbors, it is the other way round: 2,000 iterations took 22 s, did not converge, and were
    0.7 ms off; the factors take 0.7 s.
    """
    if len(right) < MOST_DIRECT:
        return None
    entries = normal.tocoo()
    own = clock[entries.row] == clock[entries.col]
    alone = coo_array((entries.data[own], (entries.row[own], entries.col[own])), shape=normal.shape)
    preconditioner = LinearOperator(normal.shape, splu(alone.tocsc()).solve)
    found = []
    for column in right.reshape(len(right), -1).T:
        each, failed = cg(normal, column, rtol=1e-7, maxiter=MOST_ITERATIONS, M=preconditioner)
        if failed:
            return None
        found.append(each)
    return np.stack(found, axis=1).reshape(right.shape)
