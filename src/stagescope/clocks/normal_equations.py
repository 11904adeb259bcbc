"""Solves the normal equations of the fit: directly, or by conjugate gradients where factors would fill in."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded  # type: ignore[import-untyped]
from scipy.sparse import coo_array, csc_array  # type: ignore[import-untyped]
from scipy.sparse.linalg import LinearOperator, cg, splu  # type: ignore[import-untyped]

from stagescope.clocks.condensed import by_factors, condensed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.clocks.evidence import Bools, Floats, Ints

    Solver = Callable[[Floats], Floats]

MOST_DIRECT = 3_000
"""Unknowns up to which a direct sparse factorization is faster than conjugate gradients."""
MOST_ITERATIONS = 100
"""Of conjugate gradients, after which a factorization is tried: they converge in 50 on random graphs of machines."""
CLOSE, MOST_REFINEMENTS = 1e-8, 400
"""Relative residual at which the iterations with constants end, and how many there may be: 10 to 350 are usual."""
MOST_BANDED = 5e9
"""Operations of a factorization within a band, up to which it is used: they take 0.3 s."""


class Way(IntEnum):
    """How a system is solved, in the order in which ways are tried: those before it take too long or fail."""

    CONDENSED = 0
    ITERATED = 1
    OWN_KNOTS = 2
    ALL_KNOTS = 3
    FACTORS = 4


class Method(NamedTuple):
    """The way in which a system was solved, and the order of elimination where that is `CONDENSED`."""

    way: Way = Way.CONDENSED
    order: Ints | None = None


def solution(
    normal: csc_array, right: Floats, unknowns: tuple[Bools, Ints], method: Method, tolerance: float = 0.0
) -> tuple[Floats, Method]:
    """Return the solution, for one or several columns, and the method that found it.

    `unknowns` has which of them are constants, and the clock of each; constants have a number of their own. `method` is
    that of an earlier system of the same clocks, whose failures are not repeated. `tolerance` is that of
    `with_constants`.
    """
    if len(right) < MOST_DIRECT:
        return np.asarray(splu(normal).solve(right)), method
    way, found = method.way, None
    if way is Way.CONDENSED:
        found, order = condensed(normal, right, unknowns, method.order)
        if found is not None:
            return found, Method(Way.ITERATED if order is None else way, order)
        way = Way.ITERATED
    if way is Way.ITERATED:
        found = iterated(normal, right, unknowns[1])
    if found is None and right.ndim == 1:
        found, way = with_constants(normal, right, unknowns, tolerance, max(way, Way.OWN_KNOTS))
    return factorized(normal, right) if found is None else found, Method(way)


def factorized(normal: csc_array, right: Floats) -> Floats:
    """Return the solution, for one or several columns, by a direct factorization."""
    return np.asarray(by_factors(normal).solve(right))


def with_constants(
    normal: csc_array,
    right: Floats,
    unknowns: tuple[Bools, Ints],
    tolerance: float = 0.0,
    first: Way = Way.OWN_KNOTS,
) -> tuple[Floats | None, Way]:
    """Return the solution of a large system with constants by conjugate gradients, and the way that converged.

    They end at a residual of `CLOSE` times the right side, or of `tolerance` if that is larger. `first` is the first
    way that is tried, and there is no solution if none converges soon. `unknowns` has which of them are constants, and
    the clock of each.

    The constant of a pair is in all of its windows, so that eliminating it connects all knots of both clocks: with 250
    clocks, 48 knots and 6,914 pairs, factors took 12 s. The preconditioner solves two systems instead, one after the
    other. In the first, each clock has one offset at all of its knots, so that constants connect two unknowns only. In
    the second, knots have no constants. Together they take 0.3 s there, and 40 iterations 0.6 s; 0.2 and 1 s with 2,500
    clocks and 106,843 pairs. `clock` numbers the unknowns of each clock; constants have none.
    """
    is_constant, clock = unknowns
    if not is_constant.any() or first is Way.FACTORS:
        return None, Way.FACTORS
    system = normal.tocsr()
    try:
        offsets = _offsets(system, is_constant, clock)
        for way, knots in _ways_to_solve_for_knots(system, is_constant, clock, first):
            found = _improved(system, right, (offsets, knots), tolerance)
            if found is not None:
                return found, way
    except RuntimeError:  # a factor is singular, by rounding
        pass
    return None, Way.FACTORS


def _improved(
    system: csc_array, right: Floats, parts: tuple[Solver, Solver], tolerance: float
) -> Floats | None:
    """Return the solution by conjugate gradients, preconditioned with both parts; None if they do not converge soon."""
    offsets, knots = parts

    def nearly_solved(residual: Floats) -> Floats:
        # Symmetric, as conjugate gradients need it: the offsets are solved for before and after the knots.
        first = offsets(residual)
        second = knots(residual - system @ first)
        return np.asarray(first + second - offsets(system @ second))

    preconditioner = LinearOperator(system.shape, nearly_solved)
    found, failed = cg(system, right, rtol=CLOSE, atol=tolerance, maxiter=MOST_REFINEMENTS, M=preconditioner)
    return None if failed else np.asarray(found)


def _offsets(system: csc_array, is_constant: Bools, clock: Ints) -> Solver:
    """Return a function that solves for one offset of each clock, and for the constants."""
    constant, other = np.flatnonzero(is_constant), np.flatnonzero(~is_constant)
    found, column = np.unique(clock[other], return_inverse=True)
    sums = coo_array((np.ones(len(other)), (column, other)), shape=(len(found), len(is_constant))).tocsr()
    own = system.diagonal()[constant]
    shared = (sums @ system[:, constant]).tocsr()
    eliminated = shared.multiply(1 / own[None, :]) @ shared.T
    by_clock = by_factors((sums @ system @ sums.T - eliminated).tocsc()).solve

    def solved(residual: Floats) -> Floats:
        left = residual[constant]
        offset = by_clock(sums @ residual - shared @ (left / own))
        result = sums.T @ offset
        result[constant] = (left - shared.T @ offset) / own
        return np.asarray(result)

    return solved


def _ways_to_solve_for_knots(
    system: csc_array, is_constant: Bools, clock: Ints, first: Way
) -> Iterator[tuple[Way, Solver]]:
    """Yield functions that solve for everything as if nothing were shared with the constants, from the `first` way on.

    Knots are in the order of time. Where each of a few clocks is compared with many, factors fill in the band, and a
    dense one is factored in a tenth of the time. With more clocks, it would be too wide. There, the knots of each clock
    alone need 250 iterations, which take less time than the factors of all knots if pairs are random: 0.5 and 7 s with
    1,000 clocks and 3,000 pairs.
    """
    other = np.flatnonzero(~is_constant)
    diagonal = system.diagonal()

    def with_diagonal(solve: Solver) -> Solver:
        def solved(residual: Floats) -> Floats:
            result = residual / diagonal
            result[other] = solve(residual[other])
            return np.asarray(result)

        return solved

    own = system[other][:, other].tocsc()
    if first is not Way.ALL_KNOTS:
        band = _within_band(own)
        if band:
            yield Way.OWN_KNOTS, with_diagonal(band)
            return
        entries, of_clock = own.tocoo(), clock[other]
        alone = of_clock[entries.row] == of_clock[entries.col]
        blocks = coo_array((entries.data[alone], (entries.row[alone], entries.col[alone])), shape=own.shape)
        yield Way.OWN_KNOTS, with_diagonal(splu(blocks.tocsc()).solve)
    yield Way.ALL_KNOTS, with_diagonal(by_factors(own).solve)


def _within_band(normal: csc_array) -> Solver | None:
    """Return a function that solves a system by the factors of its band; None if that is too wide."""
    entries, size = normal.tocoo(), normal.shape[0]
    below = entries.row - entries.col
    width = int(below.max(initial=0))
    if size * width**2 > MOST_BANDED:
        return None
    is_lower = below >= 0
    band = np.zeros((width + 1, size))
    band[below[is_lower], entries.col[is_lower]] = entries.data[is_lower]
    try:
        factors = cholesky_banded(band, overwrite_ab=True, lower=True, check_finite=False)
    except LinAlgError:  # not positive definite, by rounding
        return None
    return partial(cho_solve_banded, (factors, True), check_finite=False)


def iterated(normal: csc_array, right: Floats, clock: Ints) -> Floats | None:
    """Return the solution of a large system by conjugate gradients; None if they do not converge soon.

    They are preconditioned with each clock's own block. On a random graph of 1,000 machines the factors of a direct
    solution fill in: 4 s per solution, and 0.1 s this way. Where machines are in rings, such as replicas that are
    compared with their neighbors, it is the other way round: 2,000 iterations took 22 s, did not converge, and were
    0.7 ms off; the factors take 0.7 s.
    """
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
