"""docs/recognition.md agrees with the code."""

import doctest
import re
from itertools import product

import pytest

from places import DOCS
from stagescope.schedules import order, recognize
from stagescope.schedules.recognition.candidates import VARIANTS
from stagescope.schedules.recognition.comparison import LARGE_ORDER_ACTIONS
from stagescope.schedules.recognition.encoding import encode_order
from stagescope.schedules.recognition.recognizer import MAX_DISTANCE, MAX_MISSING_FRACTION, MIN_MARGIN
from stagescope.schedules.recognition.result import SAME_ORDER, WEIGHTS_UNSEEN

PAGE = (DOCS / "recognition.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(.+?)` \| `(.+?)` \| (\d) \| (recorded|not recorded) \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
USUAL_SIZES = list(product((2, 3, 4), range(2, 11)))
SIZES = list(product(range(2, 7), range(2, 15)))


def build(label, ranks, microbatches, chunks):
    """Return the order of a schedule, with an option if the label has one."""
    name, _, option = label.partition(" ")
    options = next((each for each in VARIANTS.get(name, ()) if option in each), {}) if option else {}
    if name == "interleaved" and chunks == 1:
        options = {"group_size": microbatches} if microbatches >= ranks else {}
    return order(name, ranks=ranks, microbatches=microbatches, chunks=chunks, **options)


def valid_sizes(label):
    name = label.partition(" ")[0]
    sizes = {"dualpipev": [(p, m) for p, m in SIZES if m >= 2 * p]}
    whole = [(p, m) for p, m in SIZES if m % max(1, m // p) == 0 and m % (m // max(1, m // p)) == 0]
    return sizes.get(name, whole if name.startswith("interleaved") else SIZES)


def test_table_of_ambiguities_is_found():
    assert len(ROWS) == PAGE.count("| recorded |") + PAGE.count("| not recorded |") > 15


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(USUAL_SIZES, id="usual"),
        pytest.param(SIZES, id="all", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_two_schedules_have_equal_orders_exactly_where_the_table_states(row, sizes):
    first, second, chunks, weights, condition = row
    seen = set()
    for p, m in sorted(set(sizes) & set(valid_sizes(first)) & set(valid_sizes(second))):
        one, other = (build(label, p, m, int(chunks)) for label in (first, second))
        equal = all(
            encode_order(one[rank], weights=weights == "recorded")
            == encode_order(other[rank], weights=weights == "recorded")
            for rank in one
        )
        stated = condition == "always" or eval(condition, {"min": min, "p": p, "m": m})  # noqa: S307  # our own table
        assert equal == stated, (p, m)
        seen.add(equal)
    assert True in seen


def test_recognition_reports_only_pairs_of_the_table():
    named = {frozenset(label.partition(" ")[0] for label in row[:2]) for row in ROWS}
    together = {"1f1b", "zb-h1", "zb-1p", "interleaved-zb"}, {"eager-1f1b", "interleaved", "zb-h2"}
    for name in (
        "gpipe",
        "1f1b",
        "eager-1f1b",
        "zb-h1",
        "zb-h2",
        "zb-2p",
        "v-half",
        "dualpipev",
        "looped-bfs",
    ):
        found = recognize(order(name, ranks=4, microbatches=12))
        assert {each.reason for each in found.indistinct} <= {SAME_ORDER, WEIGHTS_UNSEEN}
        for other in found.alternatives:
            pair = {found.name, other}
            assert frozenset(pair) in named or any(pair <= alike for alike in together)


def test_documented_limits_equal_those_of_the_code():
    assert re.findall(r"\| (0\.\d+) \|", PAGE) == [
        str(MAX_DISTANCE),
        str(MIN_MARGIN),
        str(MAX_MISSING_FRACTION),
    ]
    assert f"{LARGE_ORDER_ACTIONS // 1000} 000 actions" in PAGE


def test_examples_in_the_document_run():
    parsed = doctest.DocTestParser().get_doctest(PAGE, {}, "recognition.md", None, 0)
    assert doctest.DocTestRunner().run(parsed) == (0, 5)
