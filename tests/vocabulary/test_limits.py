"""Limits on what reading may take: their values, and the errors of what exceeds them."""

import math

import pytest

from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.limits import (
    LIMITS,
    UNLIMITED,
    beyond,
    checked_limits,
    limit,
    limit_text,
    limits_in_force,
    parse_limits,
    require,
)


@pytest.mark.parametrize("each", LIMITS, ids=lambda each: each.name)
def test_every_limit_ends_in_an_error_with_an_option_that_suffices(each):
    require(each.name, each.default, "file")
    for found in (each.default + 1, 7 * each.default, 1e15 + 0.5):
        with pytest.raises(InputError, match=r"^file: the .* more than the limit of ") as caught:
            require(each.name, found, "file")
        option = caught.value.hint.partition("--limit ")[2].partition(",")[0]
        with limits_in_force(parse_limits([option])):
            require(each.name, found, "file")
    assert parse_limits([f"{each.name}={limit_text(each.name, each.default)}"]) == {each.name: each.default}


def test_limits_apply_until_the_block_ends_and_0_removes_one():
    with limits_in_force(parse_limits(["unpacked=20GB", "query=1.5s", "spans=2e6"])):
        assert (limit("unpacked"), limit("query"), limit("spans")) == (20 * 10**9, 1, 2_000_000)
        with limits_in_force({"spans": 0}):
            assert (limit("spans"), limit("unpacked")) == (UNLIMITED, 20 * 10**9)
    assert limit("spans") == 200_000_000


def test_error_without_a_number_suggests_twice_the_limit():
    error = beyond("unpacked", "a.gz")
    assert str(error) == "a.gz: the size of one file after decompression is more than the limit of 16 GiB"
    assert "--limit unpacked=32768MiB" in error.hint
    assert "is more than" in str(beyond("ratio", "a.gz", math.inf))


@pytest.mark.parametrize(
    "text", ["", "spans", "spans=", "spans=-1", "spans=nan", "unpacked=1e9", "query=1h", "colour=5"]
)
def test_wrong_options_are_refused(text):
    with pytest.raises(UsageError):
        parse_limits([text])


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, None, [], 2**70])
def test_wrong_values_are_refused(value):
    with pytest.raises(UsageError):
        checked_limits({"spans": value})
