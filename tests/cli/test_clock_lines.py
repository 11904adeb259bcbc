"""The line about the clocks, in the commands that print it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_profiles import Cluster, write_cluster
from machines import ALIGNED, move_traces, record_machines, record_strangers, write_machines
from paddle_logs import PaddleRun, write_worker_logs
from places import DATA
from planted_clocks import plant
from stagescope.cli import main
from stagescope.cli.clock_lines import NONE_SPANS, NOT_COMPARABLE
from stagescope.exporters.pictures.step_chart import UNALIGNED

TRACES = DATA / "kineto"
LINE = "Clocks of 2 machines aligned; maximum error "
WALL = "merged by their wall clocks"


def write_paddle(directory) -> None:
    run = PaddleRun(devices=4, microbatches=4)
    write_worker_logs(directory / "machine0", run, ranks=[0, 1])
    write_worker_logs(directory / "machine1", run, ranks=[2, 3], skew_us=31_000)


def write_ascend(directory) -> None:
    write_cluster(directory, Cluster(steps=2, microbatches=4, ranks_per_host=2, skew_ns=20_000_000))


def write_kineto(directory) -> None:
    move_traces(TRACES / "ZBVZeroBubble", directory, ranks=(2, 3), ahead_ns=30_000_000)


SOURCES = {
    "recordings": record_machines,
    "paddle logs": write_paddle,
    "ascend profiles": write_ascend,
    "kineto traces": write_kineto,
}


@pytest.fixture(params=SOURCES)
def run(request, tmp_path):
    """Return the directory of a run of two machines whose clocks are off."""
    SOURCES[request.param](tmp_path)
    return tmp_path


def printed(capsys, *words) -> list[str]:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", ["show", "report"])
def test_the_line_is_printed_once_for_every_source(run, command, capsys):
    lines = printed(capsys, command, run)
    assert sum(line.startswith(LINE) for line in lines) == 1
    assert not any("machines aligned" in line and not line.startswith(LINE) for line in lines)
    assert not any(WALL in line for line in lines)


@pytest.mark.parametrize("command", ["show", "report"])
def test_unaligned_timestamps_come_with_a_warning_instead(run, command, capsys):
    lines = printed(capsys, command, run, "--no-align")
    assert not any("machines aligned" in line for line in lines)
    assert sum(WALL in line for line in lines) == 1


@pytest.mark.parametrize("source", ["paddle", "ascend", "kineto"])
def test_all_directories_of_one_machine_have_one_clock(tmp_path, source, capsys):
    if source == "paddle":
        write_worker_logs(tmp_path, PaddleRun(devices=4, microbatches=4))
    elif source == "kineto":
        move_traces(TRACES / "GPipe", tmp_path, ranks=(), ahead_ns=0)
    else:
        write_cluster(tmp_path, Cluster(steps=2, microbatches=4))
    assert printed(capsys, "clocks", tmp_path) == ["All timestamps come from one clock."]
    assert not any("clock" in line for line in printed(capsys, "report", tmp_path))


def test_unaligned_machines_are_the_first_line_and_drawn_separately(tmp_path, capsys):
    record_strangers(tmp_path)
    for command in ("show", "report"):
        lines = printed(capsys, command, tmp_path)
        assert lines[0].startswith("Clocks of 2 machines could not be aligned: node-1 (")
        assert lines[1] == NONE_SPANS, "each machine runs all stages"
        assert sum("could not be aligned" in line for line in lines) == 1
    chart = printed(capsys, "show", tmp_path, "--width", "100")
    assert sum(f"node-0: {UNALIGNED}" in line for line in chart) == 1
    assert sum(f"node-1: {UNALIGNED}" in line for line in chart) == 1


@pytest.mark.parametrize("command", ["show", "report"])
def test_pipelines_that_span_unaligned_machines_are_not_compared(tmp_path, command, capsys):
    planted = plant(replace(ALIGNED, one_way_links=((1, 2),)))
    write_machines(tmp_path, planted.timeline)
    lines = printed(capsys, command, tmp_path)
    assert lines[0].startswith("Clocks of 2 machines could not be aligned: node-1 (")
    assert lines[1] == NOT_COMPARABLE


def test_the_line_is_ascii_with_the_ascii_option(tmp_path, capsys):
    record_machines(tmp_path)
    lines = printed(capsys, "show", tmp_path, "--ascii")
    assert any(line.startswith(LINE) for line in lines)
    assert "\n".join(lines).isascii()


@pytest.mark.parametrize("command", ["show", "report", "clocks"])
def test_control_characters_in_machine_names_are_replaced(tmp_path, command, capsys):
    record_strangers(tmp_path, host="node\x1b[2J\n")
    lines = printed(capsys, command, tmp_path)
    assert "could not be aligned: node?[2J?-1" in lines[0]


def test_an_export_is_aligned_unless_no_align_is_given(tmp_path, capsys):
    planted = record_machines(tmp_path)
    true_ms = planted.truth.filter(rank=2)["start_ns"].min() / 1e6
    raw_ms = planted.timeline.spans.filter(rank=2)["start_ns"].min() / 1e6
    assert abs(true_ms - raw_ms) > 5
    for words, expected_ms in (((), true_ms), (("--no-align",), raw_ms)):
        out = tmp_path / "spans.csv"
        printed(capsys, "export", tmp_path, "-o", out, "--force", *words)
        rows = [line.split(",") for line in out.read_text().splitlines()]
        start, rank = rows[0].index("start_ns"), rows[0].index("rank")
        first_ms = min(int(row[start]) for row in rows[1:] if row[rank] == "2") / 1e6
        assert first_ms == pytest.approx(
            expected_ms + 1, abs=0.2
        )  # recordings read the wall clock 1 ms later
        out.unlink()
