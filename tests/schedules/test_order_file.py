import doctest
import importlib
from pathlib import Path

import pytest

from golden_orders import order_text, words
from stagescope.schedules.catalog import order
from stagescope.schedules.order_file import parse_order, read_order
from stagescope.vocabulary.errors import InputError, ScheduleError

TORCH = """\
0F0,0SEND_F0,0F1,,0RECV_B0,0B0,(0F2;0B1)OVERLAP_F_B,0B2
1UNSHARD,1RECV_F0,1F0,1I0,1W0,1F1,1B1,1F2,1B2,1RESHARD,1REDUCE_GRAD
"""


def torch_csv(planned) -> str:
    """Return an order as torch's CSV of computations, which `_load_csv` of its schedules reads."""

    def cell(action) -> str:
        parts = [f"{part.stage}{part.kind}{part.microbatch}" for part in action.parts]
        return parts[0] if len(parts) == 1 else f"({';'.join(parts)})OVERLAP_F_B"

    return "".join(",".join(map(cell, planned[rank])) + "\n" for rank in sorted(planned))


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "dualpipev"])
@pytest.mark.parametrize("write", [order_text, torch_csv])
def test_reads_every_kind_of_action_in_both_notations(name: str, write, tmp_path: Path) -> None:
    planned = order(name, ranks=4, microbatches=8)
    path = tmp_path / "order"
    path.write_text(write(planned))
    found = read_order(path)
    assert found.order == planned
    assert not found.skipped


def test_torch_rows_are_ranks_and_communication_is_skipped_and_counted() -> None:
    found = parse_order(TORCH)
    assert words(found.order) == {
        0: ["F0.0", "F0.1", "B0.0", "F0.2+B0.1", "B0.2"],
        1: ["F1.0", "I1.0", "W1.0", "F1.1", "B1.1", "F1.2", "B1.2"],
    }
    assert found.skipped == {
        "SEND_F": 1, "RECV_B": 1, "UNSHARD": 1, "RECV_F": 1, "RESHARD": 1, "REDUCE_GRAD": 1,
    }  # fmt: skip


def test_an_empty_torch_row_is_a_rank_without_actions() -> None:
    assert words(parse_order("0F0,0B0\n\n1F0,1B0\n\n").order) == {
        0: ["F0.0", "B0.0"],
        1: [],
        2: ["F1.0", "B1.0"],
    }


def test_accepts_comments_and_blank_lines() -> None:
    text = "# two ranks\n\nF0.0 F0.1\tB0.0  B0.1\n\nF1.0 B1.0 F1.1+B1.1\n"
    assert words(parse_order(text).order) == {
        0: ["F0.0", "F0.1", "B0.0", "B0.1"],
        1: ["F1.0", "B1.0", "F1.1+B1.1"],
    }


def test_reads_the_notation_of_torch_itself() -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    planned = order("dualpipev", ranks=2, microbatches=4)
    for line, rank in zip(torch_csv(planned).splitlines(), sorted(planned), strict=True):
        written_by_torch = ",".join(str(schedules._Action.from_str(cell)) for cell in line.split(","))
        assert words(parse_order(written_by_torch).order)[0] == words(planned)[rank]


def test_reports_the_line_of_an_invalid_action() -> None:
    with pytest.raises(ScheduleError, match=r"^schedule\.csv, line 2: invalid action '1X0'$") as caught:
        parse_order("0F0\n1X0", "schedule.csv")
    assert "torch's CSV" in caught.value.hint
    with pytest.raises(ScheduleError, match=r"line 1: invalid action 'F0'"):
        parse_order("F0.0 F0")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "0SEND_F0\n"])
def test_rejects_a_file_without_actions(text: str) -> None:
    with pytest.raises(ScheduleError, match="contains no actions"):
        parse_order(text)


def test_reports_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_order(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="cannot read"):
        read_order(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_order(tmp_path / "binary.csv")


def test_examples_run() -> None:
    tried = doctest.testmod(importlib.import_module("stagescope.schedules.order_file"))
    assert (tried.failed, tried.attempted > 0) == (0, True)
