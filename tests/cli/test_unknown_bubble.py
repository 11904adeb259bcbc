"""A run whose bubble is unknown: every command prints that, and why, and never a number."""

import json
from pathlib import Path

import pytest

import stagescope
from stagescope.cli import main

DEEPSEEK = str(Path(__file__).parents[1] / "data/kernels/deepseek_train.json.gz")
REASON = "the trace names parts of overlapped pairs, such as attn(F), but no micro-batch, stage or step"


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["report", DEEPSEEK], f"The bubble is unknown: {REASON}."),
        (["report", DEEPSEEK, "--full"], f"The bubble is unknown: {REASON}."),
        (["report", DEEPSEEK, "--markdown"], f"The bubble is unknown: {REASON}."),
        (["report", DEEPSEEK, "--bubble", "iteration"], f"The bubble is unknown: {REASON}."),
        (["show", DEEPSEEK], f"bubble: unknown, because {REASON}"),
        (["compare", DEEPSEEK, DEEPSEEK], f"The bubble of both runs is unknown: {REASON}."),
    ],
)
def test_commands_state_why_the_bubble_is_unknown(capsys, arguments, expected):
    main(arguments)
    printed = words(capsys.readouterr().out)
    assert expected in printed
    assert "0.0 % of" not in printed


def test_a_condition_on_an_unknown_bubble_fails_with_the_reason(capsys):
    assert main(["report", DEEPSEEK, "--fail-if", "bubble>0.3"]) == 3
    assert f"bubble>0.3: bubble is unknown: {REASON}" in capsys.readouterr().err


def test_json_has_null_and_the_reason(capsys):
    main(["report", DEEPSEEK, "--json", "-"])
    report = json.loads(capsys.readouterr().out)
    assert report["bubble"]["fraction"] is None
    assert report["bubble"]["unknown_because"] == REASON
    assert report["steps"] == report["ranks"] == []
    (of_run,) = (
        row for row in report["kernels"]["communication"]
        if (row["within"], row["operation"]) == ("run", "all_to_all")
    )  # fmt: skip
    assert (of_run["hidden_ns"], of_run["communication_ns"]) == (108_868_000, 113_030_000)


def test_json_of_a_comparison_has_the_reason_of_each_run(capsys):
    main(["compare", DEEPSEEK, DEEPSEEK, "--json", "-"])
    assert json.loads(capsys.readouterr().out)["unknown_because"] == {"before": REASON, "after": REASON}


def test_the_notebook_states_the_reason():
    report = stagescope.analyze(stagescope.read(DEEPSEEK))
    assert f"the bubble is unknown, because {REASON}" in report._repr_html_()
    assert "unknown" in repr(report)
