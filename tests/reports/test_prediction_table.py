import polars as pl

from stagescope.analysis.prediction.what_if import WHAT_IF
from stagescope.reports.prediction_table import what_if_text


def table(**changes):
    row = {"change": "all stages equal", "measured_step_ns": 2e6, "predicted_step_ns": 1.5e6, "gain_ns": 5e5,
           "gain_fraction": 0.25, "method": "replay", "condition": "", "note": None}  # fmt: skip
    return pl.DataFrame([{**row, **changes}], schema=dict(WHAT_IF.schema))


def test_a_line_has_step_gain_fraction_and_method():
    assert what_if_text(table()).splitlines() == [
        "if                    step      gain  of measured  by",
        "all stages equal  1.500 ms  500.0 µs       25.0 %  replay",
    ]


def test_a_loss_is_negative_and_an_unknown_prediction_a_question_mark():
    assert "-500.0 µs" in what_if_text(table(gain_ns=-5e5, gain_fraction=-0.25))
    unknown = what_if_text(table(predicted_step_ns=None, gain_ns=None, gain_fraction=None, note="why not"))
    assert unknown.splitlines()[1:] == [
        "all stages equal     ?     ?            ?  replay",
        "",
        "  all stages equal: why not",
    ]


def test_conditions_precede_notes_and_long_changes_are_listed_below():
    text = what_if_text(table(change="a" * 60, condition="if so", note="thus"))
    assert text.splitlines()[1].startswith("together (1) ")
    assert text.endswith(f"  together (1): {'a' * 60}; if so; thus")
