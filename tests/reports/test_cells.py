import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.reports.cells import EIGHTHS, IDLE, Line, covered, dominant, owners, split_cells

FORWARD, BACKWARD = 1, 2


def line(*blocks: tuple[float, float, int]) -> Line:
    """Return spans of (start, end, kind) with one look per kind, in order of kind."""
    kinds = sorted({kind for _, _, kind in blocks})
    start, end, kind = zip(*blocks, strict=True) if blocks else ((), (), ())
    return Line(
        np.array(start, dtype=float),
        np.array(end, dtype=float),
        np.array([kinds.index(each) for each in kind], dtype=np.int64),
        np.array(kinds, dtype=np.int64),
    )


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """Return consecutive spans on 20 cells, some adjacent, some separate, some of no length."""
    edges = sorted(draw(st.lists(st.floats(0, 20, width=32), min_size=2, max_size=30)))
    kinds = draw(st.lists(st.sampled_from([FORWARD, BACKWARD]), min_size=len(edges), max_size=len(edges)))
    keep = draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    pairs = zip(edges, edges[1:], kinds, keep, strict=False)
    return line(*((start, end, kind) for start, end, kind, kept in pairs if kept))


def test_coverage_is_exact_at_the_edges_of_the_bins() -> None:
    found = covered(np.array([0.5, 2.0]), np.array([1.25, 4.0]), np.arange(6.0))
    assert found.tolist() == [0.5, 0.25, 1, 1, 0]


def test_without_intervals_nothing_is_covered() -> None:
    assert covered(np.array([]), np.array([]), np.arange(4.0)).tolist() == [0, 0, 0]


def test_a_cell_belongs_to_the_dominant_kind_even_if_a_look_of_another_kind_is_larger() -> None:
    share = np.array([[0.3], [0.3], [0.4]])
    assert dominant(share, np.array([FORWARD, FORWARD, BACKWARD]), 1.0).tolist() == [0]


def test_a_mostly_idle_cell_is_idle() -> None:
    assert dominant(np.array([[0.4], [0.1]]), np.array([FORWARD, BACKWARD]), 1.0).tolist() == [IDLE]


def test_a_boundary_within_a_cell_is_rounded_to_an_eighth() -> None:
    cells = split_cells(line((0, 1.25, FORWARD), (1.25, 2, BACKWARD)), 3)
    assert cells.left.tolist() == [0, 0, IDLE]
    assert cells.right.tolist() == [0, 1, IDLE]
    assert cells.eighths.tolist() == [EIGHTHS, 2, EIGHTHS]


def test_a_cell_with_two_boundaries_is_rounded_to_halves() -> None:
    cells = split_cells(line((0, 0.25, FORWARD), (0.25, 0.625, BACKWARD), (0.625, 1, FORWARD)), 1)
    assert (cells.left[0], cells.right[0], cells.eighths[0]) == (0, 0, EIGHTHS)


def test_two_equal_spans_in_a_cell_get_half_of_it_each() -> None:
    cells = split_cells(line((0, 0.5, FORWARD), (0.5, 1, BACKWARD)), 1)
    assert (cells.left[0], cells.right[0], cells.eighths[0]) == (0, 1, 4)


def test_a_line_without_spans_is_idle() -> None:
    assert split_cells(line(), 3).left.tolist() == [IDLE] * 3
    assert owners(line(), 3).tolist() == [IDLE] * 3


def test_the_largest_span_of_the_dominant_kind_owns_a_cell() -> None:
    found = owners(line((0, 0.2, FORWARD), (0.2, 0.6, BACKWARD), (0.6, 1, FORWARD)), 1)
    assert found.tolist() == [2]


@given(lines())
def test_a_span_as_wide_as_a_cell_owns_at_least_one(drawn: Line) -> None:
    owner = owners(drawn, 20)
    assert set(np.flatnonzero(drawn.end - drawn.start >= 1)) <= set(owner.tolist())


@given(lines())
def test_the_owner_of_a_cell_covers_a_part_of_it(drawn: Line) -> None:
    for cell, block in enumerate(owners(drawn, 20).tolist()):
        if block != IDLE:
            assert drawn.start[block] < cell + 1
            assert drawn.end[block] > cell


@given(lines())
def test_the_owner_is_of_a_kind_that_took_most_of_the_cell(drawn: Line) -> None:
    edges = np.arange(21.0)
    kinds = drawn.kind_of_look[drawn.look_of_span]
    by_kind = {
        kind: covered(drawn.start[kinds == kind], drawn.end[kinds == kind], edges)
        for kind in (FORWARD, BACKWARD)
    }
    idle = 1 - sum(by_kind.values())
    for cell, block in enumerate(owners(drawn, 20).tolist()):
        shares = {IDLE: idle[cell], **{kind: share[cell] for kind, share in by_kind.items()}}
        owner_share = shares[IDLE if block == IDLE else int(kinds[block])]
        assert owner_share == pytest.approx(max(shares.values()), abs=1e-6)


@given(lines())
def test_drawn_cells_are_as_busy_as_the_spans_within_half_a_cell_per_edge(drawn: Line) -> None:
    cells = split_cells(drawn, 20)
    busy = np.where(cells.left != IDLE, cells.eighths, 0) + np.where(
        cells.right != IDLE, EIGHTHS - cells.eighths, 0
    )
    busy = np.where(cells.eighths == EIGHTHS, np.where(cells.left != IDLE, EIGHTHS, 0), busy)
    assert busy.sum() / EIGHTHS == pytest.approx(
        (drawn.end - drawn.start).sum(), abs=0.5 * (1 + len(drawn.start))
    )
