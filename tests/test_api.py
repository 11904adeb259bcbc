"""The Python API: reading with keywords, aligned clocks, what-if changes, simulation, export and the viewer."""

import polars as pl
import pytest

import stagescope as ss
from drawing import timeline_from_text
from machines import move_traces, record_machines
from places import DATA
from running_server import Visitor
from stagescope.api import align_timeline, clock_report, compare, files_state, prepare_viewer, read, simulate
from stagescope.ingest.layout import Layout
from stagescope.vocabulary.errors import InputError, ScheduleError, UsageError

ONE_MACHINE = DATA / "recordings" / "v1"
TRACES = DATA / "kineto"
RUN = timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 B1")


def test_reading_aligns_all_machines_within_the_stated_bound(tmp_path):
    planted = record_machines(tmp_path)
    timeline = read(tmp_path)
    assert timeline.clocks["error_hi_ns"].null_count() == 0
    true = planted.truth.sort("rank", "kind", "step", "microbatch")["start_ns"]
    found = timeline.spans.sort("rank", "kind", "step", "microbatch")["start_ns"]
    assert (found - 1_000_000 - true).abs().max() < timeline.clocks["error_hi_ns"].max()


def test_without_alignment_timestamps_are_as_recorded_and_a_diagnostic_reports_wall_clocks(tmp_path):
    planted = record_machines(tmp_path)
    raw = read(tmp_path, align=False)
    recorded = planted.timeline.spans["start_ns"].sort() + 1_000_000
    assert raw.spans["start_ns"].sort().equals(recorded, check_names=False)
    assert raw.diagnostics.height == 1
    assert raw.alignment is None


def test_the_diagnostic_of_wall_clocks_is_replaced_by_that_of_the_alignment(tmp_path):
    record_machines(tmp_path)
    before, after = read(tmp_path, align=False), read(tmp_path)
    assert after.diagnostics.height == 1
    assert after.diagnostics["message"][0] != before.diagnostics["message"][0]


def test_aligning_afterwards_gives_the_same_timeline(tmp_path):
    record_machines(tmp_path)
    aligned = align_timeline(read(tmp_path, align=False))
    assert aligned.spans.equals(read(tmp_path).spans)
    assert aligned.diagnostics.equals(read(tmp_path).diagnostics)
    assert [machine.machine for machine in aligned.alignment.machines] == ["node-0", "node-1"]
    assert clock_report(aligned) is aligned.alignment


def test_a_run_of_one_machine_is_unchanged_by_alignment():
    raw = read(ONE_MACHINE, align=False)
    aligned = align_timeline(raw)
    assert aligned.alignment.machines == ()
    assert clock_report(raw).machines == ()
    for name in ("spans", "ranks", "steps", "clocks", "diagnostics"):
        assert getattr(raw, name).equals(getattr(aligned, name)), name


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble"])
def test_real_traces_moved_to_another_clock_are_aligned_within_the_stated_bound(tmp_path, schedule):
    """All traces are of one host, therefore its own timestamps are the truth."""
    move_traces(TRACES / schedule, tmp_path, ranks=(2, 3), ahead_ns=30_000_000)
    aligned = read(tmp_path)
    true_ns, found_ns = (
        timeline.spans.group_by("rank").agg(pl.min("start_ns")).sort("rank")["start_ns"]
        for timeline in (read(TRACES / schedule), aligned)
    )
    missing_ns = true_ns - found_ns
    assert missing_ns.to_list()[:2] == [0, 0]
    assert missing_ns.abs().max() < 10_000_000
    clock = aligned.clocks.filter(machine="another-host")
    assert clock["error_lo_ns"].min() <= missing_ns[2:].min()
    assert missing_ns[2:].max() <= clock["error_hi_ns"].max()


def test_keywords_of_read_reach_the_layout(tmp_path):
    RUN.spans.with_columns(stage=pl.lit(None, pl.Int32)).write_csv(tmp_path / "spans.csv")
    assert read(tmp_path, pp=2).spans["stage"].to_list() != [None] * 8
    with pytest.raises(InputError, match="3"):
        read(tmp_path, pp=3)


def test_options_are_keywords_and_not_a_dictionary(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'options'"):
        ss.read(tmp_path, options={"pp": 4})


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"pp": "4"}, TypeError, "pp must be an int, not str"),
        ({"dp": True}, TypeError, "dp must be an int, not bool"),
        ({"microbatches": 0}, ValueError, "microbatches must be at least 1, not 0"),
    ],
)
def test_wrong_keywords_are_rejected_by_name(tmp_path, keywords, error, message):
    with pytest.raises(error, match=message):
        ss.read(tmp_path, **keywords)


def test_reading_without_a_path_is_an_error():
    with pytest.raises(TypeError, match="at least one path"):
        ss.read()


def test_progress_counts_the_files_from_zero():
    seen = []
    read(ONE_MACHINE, on_progress=lambda done, every: seen.append((done, every)))
    assert seen == [(done, len(seen) - 1) for done in range(len(seen))]
    assert len(seen) > 1


def test_the_default_layout_is_that_of_the_command_line():
    assert ss.api.reading.read_options().layout == Layout()


def test_each_change_gives_a_row_and_a_tuple_of_changes_one_row():
    changes = [ss.EqualStages(), (ss.EqualStages(), ss.FreeTransfers()), ss.Slower(stage=0, factor=0.9)]
    assert ss.what_if(RUN, changes).table["method"].to_list() == ["replay"] * 3
    assert ss.what_if(RUN, ss.EqualStages()).table.height == 1


@pytest.mark.parametrize("wrong", ["zb-h1", 3, None, ("zb-h1",), ["zb-h1"], {"stage": 3}])
def test_anything_but_changes_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="expected one change or several"):
        ss.what_if(RUN, wrong)


def test_a_simulation_by_name_without_costs_is_in_units_of_cost():
    step = ss.simulate("zb-v", ranks=4, microbatches=8)
    assert step.in_cost_units
    assert step.timeline.ranks["schedule"].unique().to_list() == ["zb-v"]
    assert ss.analyze(step.timeline, explain=False).in_cost_units


def test_a_simulated_order_is_the_order_of_its_name():
    order = ss.schedules.order("1f1b", ranks=2, microbatches=4)
    costs = ss.Costs(forward=10, backward=20)
    by_name = ss.simulate("1f1b", costs, ranks=2, microbatches=4)
    assert ss.simulate(order, costs, name="1f1b").timeline.spans.equals(by_name.timeline.spans)


def test_simulations_reject_missing_and_superfluous_sizes():
    with pytest.raises(TypeError, match="needs ranks= and microbatches="):
        ss.simulate("1f1b", ranks=2)
    with pytest.raises(TypeError, match="not for an order"):
        ss.simulate(ss.schedules.order("1f1b", ranks=2, microbatches=4), ranks=2)
    with pytest.raises(ScheduleError, match="no-such"):
        ss.simulate("no-such", ranks=2, microbatches=4)


def test_a_picture_of_some_ranks_has_the_requested_size(tmp_path):
    ss.export(RUN, tmp_path / "a.svg", ranks=[1], size=(800, None))
    assert 'width="800"' in (tmp_path / "a.svg").read_text(encoding="utf-8")[:400]
    with pytest.raises(UsageError, match="csv"):
        ss.export(RUN, tmp_path / "a.csv", ranks=[1])


def page_of(viewer):
    """Return the page that the server of a viewer sends for its link."""
    visitor = Visitor(int(viewer.link.split(":")[2].partition("/")[0]), viewer.link).enter()
    return visitor.ask(visitor.ask("/")[1]["location"])[2]


def test_open_serves_a_timeline_until_it_is_closed():
    with ss.open(RUN, browser=False) as viewer:
        assert viewer.meta["span_count"] == 8
        assert b"<!doctype html>" in page_of(viewer)
    with pytest.raises(ConnectionRefusedError):
        page_of(viewer)


def test_open_reads_paths_with_the_keywords_of_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ss.open(ONE_MACHINE, browser=False, schedule="gpipe") as viewer:
        assert viewer.meta["span_count"] == read(ONE_MACHINE).spans.height


def test_open_rejects_what_it_cannot_show():
    for wrong in ((3,), (RUN, RUN), ()):
        with pytest.raises(TypeError):
            ss.open(*wrong, browser=False)
    with pytest.raises(UsageError):
        ss.open(RUN, host="0.0.0.0", browser=False)  # noqa: S104 - rejected


def test_a_prepared_viewer_is_closed_without_having_been_started():
    prepare_viewer(RUN).close()


def test_the_state_of_files_changes_with_their_content(tmp_path):
    path = tmp_path / "spans.csv"
    RUN.spans.write_csv(path)
    before = files_state(path)
    assert files_state(path) == before
    RUN.spans.head(4).write_csv(path)
    assert files_state(path) != before


def test_a_page_made_from_a_report_analyzes_nothing_again(tmp_path, monkeypatch):
    report = ss.analyze(RUN)
    ss.export(RUN, tmp_path / "timeline.html")
    monkeypatch.setattr("stagescope.viewer.analysis_data.build_explained_report", None)
    ss.export(report, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "timeline.html").read_bytes()
    with ss.open(report, browser=False) as viewer:
        assert viewer.meta["span_count"] == 8


def test_a_report_is_exported_to_every_format(tmp_path):
    report = ss.analyze(RUN)
    for writer in ss.api.WRITERS:
        if writer.with_progress is not None:  # reads the original traces again, and this run has none
            continue
        ss.export(report, tmp_path / f"a{writer.suffix}")
        ss.export(RUN, tmp_path / f"b{writer.suffix}")
        if writer.name != "parquet":
            assert (tmp_path / f"a{writer.suffix}").read_bytes() == (
                tmp_path / f"b{writer.suffix}"
            ).read_bytes()


def test_a_simulation_in_units_of_cost_is_not_compared_with_times():
    times, costs = (
        simulate("1f1b", ranks=2, microbatches=4, in_cost_units=unit).timeline for unit in (False, True)
    )
    for pair in ((times, costs), (costs, times)):
        with pytest.raises(UsageError, match="units of cost cannot be compared with a run in time"):
            compare(*pair)
    assert compare(costs, costs).table.height
    assert compare(times, times).table.height
