import doctest
import importlib
from pathlib import Path

import pytest

from golden_orders import words
from stagescope.schedules.catalog import SCHEDULES, order
from stagescope.schedules.order_file import order_text, parse_order, read_order, torch_csv, write_order
from stagescope.vocabulary.errors import InputError, OutputError, ScheduleError

TORCH = """\
0F0,0SEND_F0,0F1,,0RECV_B0,0B0,(0F2;0B1)OVERLAP_F_B,0B2
1UNSHARD,1RECV_F0,1F0,1I0,1W0,1F1,1B1,1F2,1B2,1RESHARD,1REDUCE_GRAD
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("name", ["order.txt", "order.csv"])
def test_every_schedule_comes_back_from_both_notations(schedule, name: str, tmp_path: Path) -> None:
    jobs = order(schedule.name, ranks=4, microbatches=8)
    write_order(jobs, tmp_path / name)
    found = read_order(tmp_path / name)
    assert found.order == jobs
    assert not found.skipped


def test_torch_rows_are_ranks_and_what_is_no_action_is_left_out_and_counted() -> None:
    found = parse_order(TORCH)
    assert words(found.order) == {
        0: ["F0.0", "F0.1", "B0.0", "F0.2+B0.1", "B0.2"],
        1: ["F1.0", "I1.0", "W1.0", "F1.1", "B1.1", "F1.2", "B1.2"],
    }
    assert found.skipped == {
        "SEND_F": 1, "RECV_B": 1, "UNSHARD": 1, "RECV_F": 1, "RESHARD": 1, "REDUCE_GRAD": 1,
    }  # fmt: skip


def test_a_torch_row_without_a_action_is_a_rank_without_actions() -> None:
    assert words(parse_order("0F0,0B0\n\n1F0,1B0\n\n").order) == {
        0: ["F0.0", "B0.0"],
        1: [],
        2: ["F1.0", "B1.0"],
    }


def test_our_notation_may_hold_comments_and_empty_lines() -> None:
    text = "# two ranks\n\nF0.0 F0.1\tB0.0  B0.1\n\nF1.0 B1.0 F1.1+B1.1\n"
    assert words(parse_order(text).order) == {
        0: ["F0.0", "F0.1", "B0.0", "B0.1"],
        1: ["F1.0", "B1.0", "F1.1+B1.1"],
    }


def test_torch_reads_what_is_written() -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    jobs = order("dualpipev", ranks=2, microbatches=4)
    for line, rank in zip(torch_csv(jobs).splitlines(), sorted(jobs), strict=True):
        actions = [schedules._Action.from_str(cell) for cell in line.split(",")]
        assert ",".join(map(str, actions)) == line
        assert words(parse_order(line).order)[0] == words(jobs)[rank]


def test_a_word_that_is_no_action_is_named_with_its_line() -> None:
    with pytest.raises(ScheduleError, match=r"^schedule\.csv, line 2: '1X0' is no action$") as caught:
        parse_order("0F0\n1X0", "schedule.csv")
    assert "torch's CSV" in caught.value.hint
    with pytest.raises(ScheduleError, match=r"line 1: 'F0' is no action"):
        parse_order("F0.0 F0")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "0SEND_F0\n"])
def test_a_file_without_an_action_is_an_error(text: str) -> None:
    with pytest.raises(ScheduleError, match="holds no action"):
        parse_order(text)


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_order(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="cannot read"):
        read_order(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text in UTF-8"):
        read_order(tmp_path / "binary.csv")


def test_a_place_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        write_order(order("1f1b", ranks=2, microbatches=2), tmp_path)


def test_ranks_are_written_in_their_order() -> None:
    jobs = order("1f1b", ranks=2, microbatches=1)
    assert order_text({1: jobs[1], 0: jobs[0]}) == "F0.0 B0.0\nF1.0 B1.0\n"


def test_the_examples_run() -> None:
    tried = doctest.testmod(importlib.import_module("stagescope.schedules.order_file"))
    assert (tried.failed, tried.attempted > 0) == (0, True)
