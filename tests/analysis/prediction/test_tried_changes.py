from stagescope import simulate
from stagescope.analysis import build_explained_report
from stagescope.analysis.prediction.tried_changes import UNSUPPORTED, TriedChanges
from stagescope.reports.text import report_text
from stagescope.schedules.catalog import NAMES


def test_every_schedule_is_tested_or_has_a_reason():
    report = build_explained_report(simulate("1f1b", ranks=4, microbatches=8).timeline)
    tested = report.explanation.tested
    named = [*tested.schedules, *(name for names in tested.untested.values() for name in names)]
    assert sorted([*named, "1f1b"]) == sorted(NAMES)
    assert set(report.explanation.improvements["change"].str.strip_prefix("schedule ")) & set(
        tested.schedules
    )
    assert report.verdict.tested == tested.sentence()


def test_schedules_of_a_large_pipeline_are_tested_in_a_reduced_simulation():
    report = build_explained_report(simulate("1f1b", ranks=128, microbatches=128).timeline)
    assert len(report.explanation.tested.schedules) > 10
    assert "are simulated as one" in report.verdict.tested


def test_sentence_states_reasons():
    text = TriedChanges(0, ("gpipe",), untested={UNSUPPORTED: ["zb-v"], "unused": []}).sentence()
    assert text == f"Tested: 1 schedule (gpipe). Schedules not tested: zb-v, because {UNSUPPORTED}."


def test_no_claim_is_made_without_tests():
    report = build_explained_report(simulate("1f1b", ranks=4, microbatches=8).timeline)
    nothing = TriedChanges(untested={"it is unknown": ["gpipe"]})
    assert nothing.is_nothing
    assert nothing.sentence() == "No change was tested. Schedules not tested: gpipe, because it is unknown."
    assert "No change was tested" not in report_text(report)
