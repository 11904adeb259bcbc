"""What cannot fit into memory is refused: recordings before they are read, other files after some of them."""

import json
import pickle
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from ascend_profiles import Cluster, write_cluster
from ingest.kineto.planted_traces import mark, write_trace
from places import DATA
from stagescope.api import read
from stagescope.cli import main
from stagescope.ingest import memory_need, processes
from stagescope.ingest.mapping.spans import SPAN_COLUMNS
from stagescope.ingest.mapping.timeline import MAPPED_SPAN_BYTES
from stagescope.ingest.memory_need import LEAST_TRACE_SPAN_BYTES, ReadingNeed
from stagescope.vocabulary.errors import InputError

RECORDINGS = DATA / "recordings" / "v1"


@pytest.fixture
def small_machine(tmp_path, monkeypatch):
    """A machine with 32 KiB of memory and 16 KiB of swap."""
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal:   32 kB\nMemFree:   1 kB\nSwapTotal:   16 kB\n", encoding="ascii")
    monkeypatch.setattr(memory_need, "MEMORY", facts)
    monkeypatch.setattr(memory_need, "CGROUPS", (tmp_path / "max", tmp_path / "limit"))
    monkeypatch.setattr(memory_need, "OWN_CGROUPS", tmp_path / "cgroup")
    return tmp_path


@pytest.mark.usefixtures("small_machine")
def test_too_many_spans_are_refused_with_a_way_out():
    with pytest.raises(
        InputError, match=r"about \d+ spans, which need at least .* this machine has 48 KiB"
    ) as found:
        read(RECORDINGS)
    assert "--steps 0:10" in found.value.hint


@pytest.mark.usefixtures("small_machine")
def test_some_steps_and_a_stated_limit_are_read():
    assert read(RECORDINGS, steps="1:2").spans.height == read(RECORDINGS, limits={"spans": 1000}).spans.height


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 48 * 1024), ("8192", 8192 + 16 * 1024), ("?", 48 * 1024)]
)
def test_a_container_may_have_less(limit, expected, small_machine):
    small_machine.joinpath("max").write_text(f"{limit}\n", encoding="ascii")
    assert memory_need.memory_bytes() == expected


@pytest.mark.parametrize("line", ["0::/slurm/job_7/step_0", "9:memory:/slurm/job_7/step_0"])
def test_a_job_may_have_less_without_a_container(line, small_machine):
    small_machine.joinpath("cgroup").write_text(f"3:cpu:/other\n{line}\n", encoding="ascii")
    for group, limit in (("slurm/job_7", "8192"), ("slurm/job_7/step_0", "max"), ("other", "1")):
        small_machine.joinpath(group).mkdir(parents=True)
        small_machine.joinpath(group, "max").write_text(limit, encoding="ascii")
    assert memory_need.memory_bytes() == 8192 + 16 * 1024


@pytest.mark.parametrize("facts", ["", "MemTotal: many kB\nSwapTotal: 0 kB", "MemTotal: 32 kB"])
def test_an_unknown_memory_refuses_nothing(facts, small_machine):
    small_machine.joinpath("meminfo").write_text(facts, encoding="ascii")
    assert memory_need.memory_bytes() is None
    assert read(RECORDINGS).spans.height


RANKS = 30
SPANS_OF_RANK = 4


@pytest.fixture
def traces(tmp_path):
    """The directory of Kineto traces of 30 ranks with 4 actions each."""
    directory = tmp_path / "traces"
    directory.mkdir()
    for rank in range(RANKS):
        actions = [mark(f"PP:0{kind}{number}", 20 * number + at, 20 * number + at + 9)
                   for number in range(2) for kind, at in (("F", 0), ("B", 10))]  # fmt: skip
        write_trace(directory / f"rank{rank}.json", actions, rank=rank, ranks=range(RANKS))
    return directory


def machine_with(monkeypatch, size_bytes):
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: size_bytes)
    monkeypatch.setattr(memory_need, "_used_bytes", lambda: 0)


ALL_BYTES = RANKS * SPANS_OF_RANK * LEAST_TRACE_SPAN_BYTES


@pytest.mark.parametrize("cores", [1, pytest.param(2, id="workers")])
def test_traces_are_refused_after_some_of_them(monkeypatch, traces, cores):
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: cores)
    machine_with(monkeypatch, int(0.8 * ALL_BYTES))  # 20 of 30 traces, and half of the others, need more
    seen = []
    with pytest.raises(InputError) as found:
        read(traces, on_progress=lambda done, _: seen.append(done))
    assert str(found.value).startswith("20 of 30 files were read, with 80 spans; all of them need at least")
    assert str(found.value).endswith("of memory, and this machine has 13.12 KiB")
    assert "one pipeline" in found.value.hint
    assert "--limit spans=0" in found.value.hint
    assert max(seen) == 20


def test_traces_that_may_fit_are_read(monkeypatch, traces):
    whole = read(traces)
    machine_with(monkeypatch, ALL_BYTES)
    assert read(traces).spans.equals(whole.spans)


def test_a_stated_limit_reads_traces_anyway(monkeypatch, traces):
    machine_with(monkeypatch, 1)
    assert read(traces, limits={"spans": 0}).spans.height == RANKS * SPANS_OF_RANK


def test_traces_beside_other_files_are_refused_too(monkeypatch, traces):
    shutil.copytree(RECORDINGS, traces / "recordings")
    machine_with(monkeypatch, 64 << 10)
    monkeypatch.setattr(memory_need, "LEAST_SPAN_BYTES", 0)
    monkeypatch.setattr(memory_need, "LEAST_ROW_BYTES", 0)
    monkeypatch.setattr(ReadingNeed, "count", lambda need, *_, **__: setattr(need, "_new_bytes", 1 << 20))
    with pytest.raises(InputError, match="1 of 34 files were read; all of them need at least 1 MiB"):
        read(traces)


def test_ascend_profiles_are_refused_after_the_first_that_needs_too_much(monkeypatch, tmp_path):
    write_cluster(tmp_path, Cluster(steps=1))
    machine_with(monkeypatch, 10)
    with pytest.raises(InputError, match=r"^1 of 4 files were read, with \d+ spans; all of them need"):
        read(tmp_path)


def test_a_process_that_has_taken_nearly_all_memory_stops(monkeypatch, traces):
    peak_until_freed = [50, 60, 200, 70]
    used = iter([*peak_until_freed, *range(80, 130, 10), 150, 150])
    machine_with(monkeypatch, 100 << 30)
    monkeypatch.setattr(memory_need, "_used_bytes", lambda: next(used) << 30)
    monkeypatch.setattr(memory_need, "RETURNED_S", 0.0)
    with pytest.raises(InputError) as found:
        read(traces)
    assert str(found.value) == (
        "8 of 30 files were read, with 32 spans; they took 100 GiB of memory, and this machine has 100 GiB"
    )


@pytest.fixture
def chrome_traces(tmp_path):
    """The paths of Chrome traces of 30 ranks with 4 actions each."""
    paths = [tmp_path / f"trace_rank{rank}.json" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        events = [{"ph": "X", "name": f"{kind}_{number}", "ts": 100 * number + at, "dur": 9, "pid": rank}
                  for number in range(2) for kind, at in (("forward", 0), ("backward", 10))]  # fmt: skip
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return paths


def test_slices_that_fit_are_refused_when_their_spans_do_not(monkeypatch, chrome_traces):
    whole = read(*chrome_traces)
    size_bytes = RANKS * SPANS_OF_RANK * MAPPED_SPAN_BYTES
    machine_with(monkeypatch, size_bytes)
    assert_frame_equal(read(*chrome_traces).spans, whole.spans)
    machine_with(monkeypatch, size_bytes - 1)
    with pytest.raises(
        InputError, match="30 of 30 files were read, with 120 spans; all of them need at least"
    ):
        read(*chrome_traces)


def test_a_mapped_span_takes_the_memory_that_is_assumed():
    columns = {**SPAN_COLUMNS, "file": pl.Int32}
    sizes = [pl.Series([None], dtype=dtype).to_physical().dtype for dtype in columns.values()]
    bits = {pl.UInt8: 8, pl.UInt32: 32, pl.Int32: 32, pl.Int64: 64}
    assert sum(bits[dtype] for dtype in sizes) == 8 * MAPPED_SPAN_BYTES


def need_of(sizes):
    return ReadingNeed({Path(name): size for name, size in sizes.items()})


def test_compressed_files_show_nothing_about_others(monkeypatch):
    machine_with(monkeypatch, 39_000)
    sizes = {f"{n}.json.gz": 10 for n in range(30)} | {f"{n}.json": 1000 for n in range(30)}
    need = need_of(sizes)
    for name in list(sizes)[:30]:
        need.count(1, span_bytes=200)
        need.done(Path(name))
    need = need_of(sizes)
    for name in list(sizes)[30:49]:
        need.count(8, span_bytes=200)
        need.done(Path(name))
    need.count(8, span_bytes=200)
    with pytest.raises(InputError, match="20 of 60 files"):
        need.done(Path(list(sizes)[49]))


def test_few_files_or_bytes_show_nothing_about_the_others(monkeypatch):
    machine_with(monkeypatch, 100_000)
    sizes = {f"{n}.json": 1000 if n < 41 else 100_000 for n in range(60)}
    need = need_of(sizes)
    for name in list(sizes)[:38]:
        need.count(10)
        need.done(Path(name))
    with pytest.raises(InputError, match="39 of 60 files"):  # 2 % of the bytes
        need.done(Path("38.json"))


def test_kernels_count_and_a_refusal_can_be_pickled(monkeypatch):
    machine_with(monkeypatch, 1000)
    need = need_of({"a.json": 1, "b.json": 1})
    need.count(2, 100)
    with pytest.raises(InputError, match="1 of 2 files were read, with 2 spans and 100 kernels") as found:
        need.done(Path("a.json"))
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)  # noqa: S301 - our own


def test_the_memory_of_this_process_is_known():
    assert memory_need._used_bytes() > 1 << 20


def test_the_command_states_what_is_missing_in_two_lines(monkeypatch, traces, capsys):
    machine_with(monkeypatch, int(0.8 * ALL_BYTES))
    assert main(["report", "--no-cache", str(traces)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("stagescope: 20 of 30 files were read, with 80 spans; all of them need at least")
    assert second.startswith("  read some of the files, such as those of one pipeline")
