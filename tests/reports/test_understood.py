"""The table of what was understood of a mapped trace."""

from pathlib import Path

import stagescope
from drawing import timeline_from_text
from stagescope.cli import main
from stagescope.reports.understood import understood_lines

MEGASCAN = Path(__file__).parents[1] / "data" / "mapped" / "megascan-pp-iter10.json.gz"

EXPECTED = """\
understood as:
  ranks             4 (0-3)
  stages            16 (0-15)
  micro-batches     8 (0-7)
  steps             1 (10)
  actions per step  256
  slices            256 of 256 slices are used, by the mapping megascan, which was recognized
"""


def test_states_numbers_and_the_share_of_slices_before_any_conclusion(capsys):
    assert main(["report", str(MEGASCAN)]) == 0
    assert capsys.readouterr().out.startswith(EXPECTED)
    assert main(["show", str(MEGASCAN)]) == 0
    assert capsys.readouterr().out.startswith(EXPECTED)


def test_what_no_action_states_is_unknown_and_not_zero():
    timeline = stagescope.read(MEGASCAN, pattern="{kind}", map={"step": "args.iteration", "rank": "pid"})
    lines = understood_lines(timeline)
    assert "  micro-batches     unknown" in lines


def test_recordings_have_no_such_table():
    assert understood_lines(timeline_from_text("F0 B0")) == []
