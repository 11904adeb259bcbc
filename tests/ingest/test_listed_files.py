"""Of the files on an object store, only those that a search would look into are fetched."""

from __future__ import annotations

from places import DATA
from stagescope.api.formats import READERS
from stagescope.ingest.discover import find_inputs
from stagescope.ingest.listed_files import names_to_read
from stagescope.ingest.registry import Registry


def read(*names):
    return names_to_read(names, READERS)


def test_recordings_and_traces_are_fetched_and_checkpoints_are_not():
    names = [
        "rank0.sscope",
        "sub/Rank1.SSCOPE.zst",
        "x.json",
        "weights.safetensors",
        "model/optimizer.pt",
        "a.db-wal",
    ]
    assert read(*names) == ["rank0.sscope", "sub/Rank1.SSCOPE.zst", "x.json"]
    assert read("ascend_pytorch_profiler_0.db", "ascend_pytorch_profiler_0.db-wal", "b.bin") == [
        "ascend_pytorch_profiler_0.db", "ascend_pytorch_profiler_0.db-wal",
    ]  # fmt: skip


def test_kernel_traces_beside_recordings_are_not_fetched():
    assert read("a/r.sscope", "a/kernels-0/trace.json", "b/kernels-0/trace.json") == [
        "a/r.sscope", "b/kernels-0/trace.json",
    ]  # fmt: skip


def test_the_spans_of_a_stored_run_wait_until_they_are_used():
    span = "spans/pipeline=0/step_range=0/part.parquet"
    assert read("stored-run.json", "lock", "ranks.parquet", span, "analysis/report.json") == [
        "stored-run.json", "ranks.parquet", "analysis/report.json",
    ]  # fmt: skip
    page = [f"page/4f-7c/{name}" for name in ("page.json", "spans", "idle.parquet")]
    assert read("stored-run.json", "ranks.parquet", *page) == ["stored-run.json", "ranks.parquet"]
    below = [f"run/{name}" for name in page]
    assert read("r.sscope", "run/stored-run.json", "run/ranks.parquet", f"run/{span}", *below) == [
        "r.sscope", "run/stored-run.json",
    ]  # fmt: skip


def test_every_file_that_a_search_of_this_machine_finds_would_be_fetched():
    for directory in (DATA / "recordings" / "v1",):
        names = [file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()]
        found = find_inputs([directory], Registry(READERS, ()))
        used = {file.relative_to(directory).as_posix() for files in found.files.values() for file in files}
        assert used <= set(names_to_read(names, READERS))
