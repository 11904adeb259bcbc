"""Conversion of microseconds to nanoseconds."""

from fractions import Fraction

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from stagescope.ingest.microseconds import nanoseconds


@given(st.floats(-4e15, 4e15))
@example(1683564901552104.0)
@example(1683564901552104.25)
@example(4458676568.75)
@example(-0.0005)
def test_microseconds_are_rounded_to_the_nearest_nanosecond(microseconds):
    exact = Fraction(microseconds) * 1000
    (found,) = pl.select(nanoseconds(pl.lit(microseconds))).to_series()
    assert abs(found - exact) <= Fraction(1, 2) + Fraction(1, 10**9)


@given(st.integers(-4 * 10**15, 4 * 10**15))
def test_whole_microseconds_are_converted_exactly(microseconds):
    (found,) = pl.select(nanoseconds(pl.lit(float(microseconds)))).to_series()
    assert found == 1000 * microseconds
