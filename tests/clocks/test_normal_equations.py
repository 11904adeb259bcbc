"""Large systems have the same solution by iterations as by a factorization, or none by iterations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array, csc_array, diags_array

from stagescope.clocks import condensed, normal_equations
from stagescope.clocks.normal_equations import Method, Way, factorized, solution, with_constants

CLOCKS, KNOTS, NEIGHBORS = 60, 64, 5


def planted(seed, constant_scale):
    """Return normal equations of clocks in a ring, whose pairs have a constant each, and which unknowns these are."""
    random = np.random.default_rng(seed)
    pairs = [(one, (one + apart) % CLOCKS) for one in range(CLOCKS) for apart in range(1, NEIGHBORS)]
    rows = []
    for number, (one, other) in enumerate(pairs):
        for knot in range(KNOTS):
            weight = random.uniform(0.5, 2)
            constant = KNOTS * CLOCKS + number
            rows.append([(knot * CLOCKS + one, -weight), (knot * CLOCKS + other, weight), (constant, weight)])
    unknowns = KNOTS * CLOCKS + len(pairs)
    entries = [(row, column, value) for row, terms in enumerate(rows) for column, value in terms]
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    design = coo_array((value, (row, column)), shape=(len(rows), unknowns)).tocsr()
    is_constant = np.arange(unknowns) >= KNOTS * CLOCKS
    own = np.where(is_constant, 1 / constant_scale**2, 0.01)
    normal = csc_array(design.T @ design + coo_array((own, (np.arange(unknowns),) * 2)).tocsr())
    clock = np.where(is_constant, np.arange(unknowns), np.arange(unknowns) % CLOCKS)
    return normal, design.T @ random.normal(size=len(rows)), is_constant, clock


@pytest.mark.parametrize("most_banded", [0.0, 1e12])
@pytest.mark.parametrize("constant_scale", [0.01, 1.0, 30.0])
def test_iterations_have_the_solution_of_the_factors(constant_scale, most_banded, monkeypatch):
    monkeypatch.setattr(normal_equations, "MOST_BANDED", most_banded)
    normal, right, is_constant, clock = planted(3, constant_scale)
    found, way = with_constants(normal, right, (is_constant, clock))
    assert found == pytest.approx(factorized(normal, right), abs=1e-5)
    assert way is Way.OWN_KNOTS


def test_a_clock_that_was_set_is_one_more_unknown(monkeypatch):
    """Its jump is in all windows after it; the knots have a band only without it."""
    monkeypatch.setattr(normal_equations, "MOST_REFINEMENTS", 60)
    normal, right, is_constant, clock = planted(3, 1.0)
    later = np.zeros(len(right))
    later[[knot * CLOCKS + 7 for knot in range(KNOTS // 2, KNOTS)]] = 1.0
    # The design of the jump is the sum of the columns of its clock after it.
    column = normal @ later
    places = np.arange(len(right))
    entries = normal.tocoo()
    with_jump = csc_array(
        coo_array(
            (
                np.concatenate([entries.data, column, column, [later @ column + 1e-4]]),
                (
                    np.concatenate([entries.row, places, np.full(len(right), len(right)), [len(right)]]),
                    np.concatenate([entries.col, np.full(len(right), len(right)), places, [len(right)]]),
                ),
            )
        ).tocsr()
    )
    both = np.append(right, later @ right)
    unknowns = np.append(is_constant, False), np.append(clock, len(right) + CLOCKS)
    found, _ = with_constants(with_jump, both, unknowns)
    assert found == pytest.approx(factorized(with_jump, both), abs=1e-5)


def test_what_does_not_converge_is_left_to_the_factors(monkeypatch):
    monkeypatch.setattr(normal_equations, "MOST_REFINEMENTS", 2)
    normal, right, *unknowns = planted(3, 30.0)
    assert with_constants(normal, right, unknowns) == (None, Way.FACTORS)


def test_a_way_that_did_not_converge_is_tried_once(monkeypatch):
    """The factors of all knots converge in a few iterations, those of each clock alone in more."""
    monkeypatch.setattr(normal_equations, "MOST_BANDED", 0.0)
    monkeypatch.setattr(normal_equations, "MOST_REFINEMENTS", 12)
    normal, right, *unknowns = planted(3, 1.0)
    found, way = with_constants(normal, right, unknowns)
    assert found == pytest.approx(factorized(normal, right), abs=1e-5)
    assert way is Way.ALL_KNOTS
    calls = []
    monkeypatch.setattr(
        normal_equations,
        "cg",
        lambda *args, cg=normal_equations.cg, **options: (calls.append(args), cg(*args, **options))[1],
    )
    again, way = with_constants(normal, right, unknowns, first=way)
    assert (again == found).all()
    assert (way, len(calls)) == (Way.ALL_KNOTS, 1)
    assert with_constants(normal, right, unknowns, first=Way.FACTORS) == (None, Way.FACTORS)


def test_what_is_singular_by_rounding_is_left_to_the_factors():
    normal, right, is_constant, clock = planted(3, 1.0)
    alone = normal.tolil()
    alone[:, 0] = alone[0, :] = 0.0
    unknowns = is_constant, np.where(clock == 0, 1, clock)
    assert with_constants(csc_array(alone), right, unknowns) == (None, Way.FACTORS)


def test_systems_without_constants_are_left_to_the_factors():
    normal, right, is_constant, clock = planted(3, 1.0)
    assert with_constants(normal, right, (np.zeros_like(is_constant), clock))[0] is None
    knots = ~is_constant
    normal, right, unknowns = normal[knots][:, knots], right[knots], (is_constant[knots], clock[knots])
    assert condensed.condensed(normal, right, unknowns)[0] == pytest.approx(
        factorized(normal, right), abs=1e-8
    )


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("constant_scale", [0.01, 1.0, 30.0])
def test_eliminating_constants_gives_the_solution_of_the_factors(constant_scale, columns):
    normal, right, *unknowns = planted(3, constant_scale)
    several = np.random.default_rng(0).normal(size=(len(right), *columns))
    found, method = solution(normal, several, unknowns, Method())
    assert found == pytest.approx(factorized(normal, several), abs=1e-8)
    assert method.way is Way.CONDENSED
    again, later = solution(normal, several, unknowns, method)
    assert again == pytest.approx(found, abs=1e-10)
    assert later.order is method.order
    other, clock = normal[CLOCKS:][:, CLOCKS:], (each[CLOCKS:] for each in unknowns)
    found, later = solution(other, several[CLOCKS:], tuple(clock), method)
    assert found == pytest.approx(factorized(other, several[CLOCKS:]), abs=1e-8)
    assert len(later.order) == len(method.order) - CLOCKS


def test_the_next_way_is_used_where_factors_without_constants_fill_in(monkeypatch):
    monkeypatch.setattr(condensed, "MOST_OPERATIONS", 1e6)
    normal, right, *unknowns = planted(3, 1.0)
    found, method = solution(normal, right, unknowns, Method())
    assert found == pytest.approx(factorized(normal, right), abs=1e-5)
    assert method == Method(Way.OWN_KNOTS)
    several = np.stack([right, 2 * right], axis=1)
    found, later = solution(normal, several, unknowns, method)
    assert found == pytest.approx(factorized(normal, several), abs=1e-10)
    assert later == method


@pytest.mark.parametrize("met_knots", [2, 8])
@pytest.mark.parametrize("neighbors", [1, 5, 30])
def test_a_factorization_takes_no_more_operations_than_are_possible(neighbors, met_knots):
    """The constant of a pair connects some of the knots of both clocks; with all of them, the number is known."""
    random = np.random.default_rng(neighbors)
    clocks, knots = 200, 8
    one = np.arange(clocks).repeat(neighbors)
    pairs = np.unique(np.stack([one, random.integers(0, clocks, len(one))]), axis=1)
    one, other = pairs[:, pairs[0] != pairs[1]]
    met = np.stack([random.permutation(knots)[:met_knots] for _ in one])
    row = np.concatenate([(each[:, None] * knots + met).reshape(-1) for each in (one, other)])
    entries = np.repeat([1.0, -1.0], met.size), (row, np.tile(np.arange(len(one)).repeat(met_knots), 2))
    shared = coo_array(entries, shape=(clocks * knots, len(one))).tocsr()
    among = diags_array(np.full(clocks * knots, 1.0 + knots * knots * neighbors)).tocsr()
    below = np.diff(condensed.by_factors((among - shared @ shared.T).tocsc()).L.indptr).astype(float)
    expected, possible = condensed._operations(among, shared, np.arange(clocks).repeat(knots))
    assert below @ below <= 1.05 * possible
    assert expected <= possible
    if met_knots == knots:
        assert expected <= 1.7 * below @ below


def test_a_first_factorization_that_took_too_long_is_the_last_one(monkeypatch):
    normal, right, *unknowns = planted(3, 1.0)
    estimate = condensed._operations
    monkeypatch.setattr(condensed, "_operations", lambda *args: (0.0, estimate(*args)[1]))
    monkeypatch.setattr(condensed, "MOST_OPERATIONS", 1e6)
    found, method = solution(normal, right, unknowns, Method())
    assert found == pytest.approx(factorized(normal, right), abs=1e-8)
    assert method == Method(Way.ITERATED)
    monkeypatch.setattr(condensed, "MOST_POSSIBLE", 1e6)
    assert condensed.condensed(normal, right, unknowns) == (None, None)


def test_a_system_that_is_singular_without_constants_is_left_to_the_other_ways():
    normal, right, is_constant, clock = planted(3, 1.0)
    alone = normal.tolil()
    alone[:, 0] = alone[0, :] = 0.0
    assert condensed.condensed(csc_array(alone), right, (is_constant, clock)) == (None, None)


def test_small_systems_are_solved_at_once():
    normal, right, is_constant, clock = planted(3, 1.0)
    some = slice(0, 100)
    found, method = solution(normal[some][:, some], right[some], (is_constant[some], clock[some]), Method())
    assert found == pytest.approx(factorized(normal[some][:, some], right[some]), abs=1e-8)
    assert method == Method()
