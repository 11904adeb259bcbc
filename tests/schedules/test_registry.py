import pytest

from stagescope.schedules import order
from stagescope.schedules.registry import Constraint, Option, Schedule, Shape
from stagescope.vocabulary.errors import ScheduleError


def refusal(name, **asked):
    with pytest.raises(ScheduleError) as refused:
        order(name, **asked)
    return str(refused.value), refused.value.hint


def test_error_has_constraint_source_found_and_nearest_valid_values():
    message, hint = refusal("dualpipe", ranks=4, microbatches=6)
    assert message == (
        "dualpipe needs at least 2 x ranks micro-batches (the DualPipe repository); "
        "found ranks=4, microbatches=6, chunks=2"
    )
    assert hint == "nearest valid: microbatches=8"


@pytest.mark.parametrize(
    ("name", "asked", "nearest"),
    [
        ("dualpipe", {"ranks": 3, "microbatches": 6}, "ranks=2 or ranks=4 with microbatches=8"),
        ("dualpipe", {"ranks": 4, "microbatches": 11}, "microbatches=10 or microbatches=12"),
        ("dualpipe", {"ranks": 4, "microbatches": 7}, "microbatches=8"),
        ("dualpipev", {"ranks": 4, "microbatches": 7}, "microbatches=8"),
        ("chimera", {"ranks": 4, "microbatches": 6}, "microbatches=4 or microbatches=8"),
        ("chimera", {"ranks": 5, "microbatches": 6}, "ranks=4 with microbatches=8 or ranks=6"),
        ("interleaved", {"ranks": 4, "microbatches": 14}, "microbatches=12 or microbatches=15"),
        ("interleaved", {"ranks": 4, "microbatches": 14, "group_size": 3}, "group_size=5"),
        ("interleaved", {"ranks": 4, "microbatches": 8, "group_size": 0}, "group_size=4"),
        ("interleaved-zb", {"ranks": 2, "microbatches": 5}, "microbatches=4 or microbatches=6"),
        ("1f1b", {"ranks": 0, "microbatches": 0}, "ranks=1 with microbatches=1"),
        ("1f1b", {"ranks": 2.5, "microbatches": 3}, "ranks=2 or ranks=3"),
        ("zb-v", {"ranks": 2, "microbatches": 3, "chunks": 3}, "chunks=2"),
    ],
)
def test_suggested_values_are_valid(name, asked, nearest):
    assert refusal(name, **asked)[1] == f"nearest valid: {nearest}"
    for text in nearest.split(" or "):
        changes = (change.split("=") for change in text.split(" with "))
        order(name, **{**asked, **{key: int(value) for key, value in changes}})


def test_suggests_nothing_for_values_that_are_not_numbers():
    assert refusal("1f1b", ranks="four", microbatches=8)[1] == ""


@pytest.mark.parametrize("value", [1, "yes", None])
def test_an_option_has_the_type_of_its_default(value):
    message, hint = refusal("gpipe", ranks=2, microbatches=2, lifo=value)
    assert message == f"gpipe: invalid value {value!r} for option lifo"
    assert hint.startswith("lifo: True runs the backwards in reverse order")


def test_true_is_not_a_number():
    assert refusal("interleaved", ranks=2, microbatches=2, group_size=True)[0].endswith(
        "invalid value True for option group_size"
    )
    assert "whole number" in refusal("1f1b", ranks=True, microbatches=2)[0]


def test_an_option_accepts_none_as_default_and_its_declared_types():
    option = Option("limit", None, "some limit", (int, list))
    assert [option.allows(value) for value in (None, 3, [1], "3", 1.5, True)] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_omitted_options_have_their_defaults():
    schedule = planned(options=(Option("depth", 3, "how deep"), Option("wide", False, "how wide")))
    assert schedule.shape(2, 2, None, {"wide": True}).options == {"depth": 3, "wide": True}


def test_reports_the_first_violated_constraint():
    schedule = planned(
        constraints=(
            Constraint("three ranks", "a book", lambda shape: shape.ranks == 3, "ranks"),
            Constraint("nine micro-batches", "another", lambda shape: shape.microbatches == 9),
        )
    )
    with pytest.raises(ScheduleError, match=r"^planned needs three ranks \(a book\)") as refused:
        schedule.check(Shape(ranks=2, microbatches=2))
    assert refused.value.hint == "nearest valid: ranks=3 with microbatches=9"


def planned(**more):
    return Schedule(
        name="planned",
        title="Planned",
        source="nowhere",
        placement="linear",
        peak_memory="m",
        build=lambda shape: {rank: [] for rank in range(shape.ranks)},
        **more,
    )
