"""The expressions of a mapping: computed like Python's integers, refused with a position."""

import operator

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.mapping.expressions import DEEPEST, LONGEST, parse_expression
from stagescope.vocabulary.errors import UsageError

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
NAMES = {"pid": 7, "tid": -3, "args.chunk": 2, "thread.pp": 0}

LEAVES = st.sampled_from([*NAMES, "0", "1", "12"])
TEXTS = st.recursive(
    LEAVES, lambda inner: st.tuples(inner, st.sampled_from([*OPERATORS]), inner).map(list), max_leaves=8
)


def written(tree):
    if isinstance(tree, str):
        return tree
    return f"({written(tree[0])} {tree[1]} {written(tree[2])})"


def expected(tree):
    if isinstance(tree, str):
        return NAMES[tree] if tree in NAMES else int(tree)
    left, right = expected(tree[0]), expected(tree[2])
    if left is None or right is None or (right == 0 and tree[1] in ("//", "%")):
        return None
    return OPERATORS[tree[1]](left, right)


def value(text, **columns):
    frame = pl.DataFrame(columns or {"pid": [0]})
    return parse_expression(text).values(frame).to_list()


@given(TEXTS)
def test_computes_what_python_computes_and_null_for_a_division_by_zero(tree):
    text = written(tree)
    if len(text) > LONGEST:
        return
    frame = pl.DataFrame({name: [str(number)] for name, number in NAMES.items()})
    assert parse_expression(text).values(frame).to_list() == [expected(tree)]


def test_operators_bind_as_in_python():
    assert value("2 - 3 - 4 * 5 // 6 % 4 + -1") == [2 - 3 - 4 * 5 // 6 % 4 + -1]


def test_a_text_that_is_no_number_is_unknown():
    frame = {"args.a b": ["3", "x", None, "1.5"], "tid": ["1", "1", "1", "1"]}
    assert value("args['a b'] + tid", **frame) == [4, None, None, None]


def test_a_result_that_does_not_fit_is_unknown_instead_of_another_number():
    assert value("999999999999999 * 999999999999999") == [None]


@pytest.mark.parametrize(
    ("text", "character", "found"),
    [
        ("", 1, "the end"), ("1 +", 4, "the end"), ("(1", 3, "the end"), ("1)", 2, "')'"), ("foo", 1, "'foo'"),
        ("args", 1, "'args'"), ("pid ** 2", 6, "'*'"), ("1.5", 2, "'.'"), ("pid; pid", 4, "';'"),
        ("__import__('os')", 1, "'__import__'"), ("args.a.__class__()", 17, "'('"), ("9" * 16, 1, f"'{'9' * 16}'"),
    ],
)  # fmt: skip
def test_names_the_position_of_what_is_wrong(text, character, found):
    with pytest.raises(UsageError, match=f"character {character}: expected .*, found ") as error:
        parse_expression(text)
    assert str(error.value).endswith(found)


def test_bounds_depth_and_length():
    assert value("(" * (DEEPEST - 1) + "1" + ")" * (DEEPEST - 1)) == [1]
    with pytest.raises(UsageError, match="nested brackets"):
        parse_expression("(" * DEEPEST + "1" + ")" * DEEPEST)
    with pytest.raises(UsageError, match="nested brackets"):
        parse_expression("-" * 100 + "1")
    with pytest.raises(UsageError, match="characters, found 201"):
        parse_expression("1" + "+1" * (LONGEST // 2))
    assert value("+".join(["1"] * 100)) == [100]
