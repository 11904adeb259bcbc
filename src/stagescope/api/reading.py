"""Read recordings and traces into one Timeline, with the clocks of all machines aligned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from stagescope.api.fetched_paths import local_paths, with_addresses
from stagescope.api.formats import MAPPED_READERS, READERS
from stagescope.api.stored_runs import aligned, open_stored_run, stored_run_of
from stagescope.clocks import ClockReport, clock_line
from stagescope.clocks import report_json as clock_json
from stagescope.ingest import Inputs, find_inputs, read_inputs
from stagescope.ingest.discover import require_text_name
from stagescope.ingest.layout import Layout
from stagescope.ingest.mapping.request import mapping_request
from stagescope.ingest.merge import merge_timelines
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.registry import load_registry
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.stages import place_stages
from stagescope.ingest.step_selection import select_steps
from stagescope.ingest.step_sizes import require_step_sizes
from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.limits import checked_limits, limits_in_force
from stagescope.vocabulary.parallel import DEFAULT_ORDER, DIMENSIONS
from stagescope.vocabulary.steps import wanted_steps

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange

__all__ = [
    "RunFacts",
    "align_timeline",
    "clock_json",
    "clock_line",
    "clock_report",
    "read",
    "read_paddle_logs",
]

LAYOUT_KEYWORDS = (*DIMENSIONS, "order")


class RunFacts(TypedDict, total=False):
    """The keywords of `read` that supply what the files of a run may not contain."""

    pp: int | None
    tp: int | None
    dp: int | None
    cp: int | None
    order: str
    schedule: str | None
    microbatches: int | None
    pattern: str | None
    attempt: int | None
    pipeline: str | None
    kernels: bool
    limits: Mapping[str, int | str] | None
    map: Mapping[str, str | int] | None
    mapping: str | os.PathLike[str] | None
    only: Mapping[str, str | int] | None
    steps: str | StepRange | None


def read(
    *paths: str | os.PathLike[str],
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    order: str = DEFAULT_ORDER,
    schedule: str | None = None,
    microbatches: int | None = None,
    pattern: str | None = None,
    attempt: int | None = None,
    pipeline: str | None = None,
    kernels: bool = False,
    limits: Mapping[str, int | str] | None = None,
    map: Mapping[str, str | int] | None = None,  # noqa: A002 - the name of the option
    mapping: str | os.PathLike[str] | None = None,
    only: Mapping[str, str | int] | None = None,
    steps: str | StepRange | None = None,
    align: bool = True,
    on_progress: Callable[[int, int], object] | None = None,
) -> Timeline:
    r"""Return the Timeline of one run, read from recordings, traces of other tools or span tables.

    `paths` are files and directories, also on object stores (``"s3://bucket/recordings"``, docs/reading.md); a
    directory is searched recursively. The content of a file determines its format. The keywords supply what the files
    do not contain:

    pp, tp, dp, cp
        Sizes of pipeline, tensor, data and context parallelism.
    order
        How ranks are numbered, the fastest dimension first, as in Megatron-LM.
    schedule, microbatches
        Name of the pipeline schedule that ran, and micro-batches per step and pipeline.
    pattern
        How a Chrome trace names its actions, such as ``"{kind}_{microbatch}"`` (docs/reading.md).
    attempt
        Number of the attempt to read, from 0, if a recorded run was restarted; by default the last complete one.
    pipeline
        Name of the pipeline to read, such as ``"GPipe"``, if the processes of a recording ran several; by default the
        one that took the most time.
    kernels
        Also read every kernel of the device, as `timeline.kernels` (torch.profiler, Nsight Systems, rocprofv3, XLA). A
        trace of ten thousand kernels per step becomes a table of as many rows.
    limits
        Other limits on what a file may contain or expand to, such as ``{"unpacked": "20GB", "spans": 500_000_000}``;
        0 for no limit. docs/reliability.md lists all of them.
    map
        Where a Chrome trace states the identity of actions, by field, such as ``{"microbatch": "args.microbatch",
        "step": "args.iteration", "stage": "args.model_chunk * 4 + pid"}``; docs/mapping.md has the fields and the
        language.
    mapping
        A TOML file that maps the slices of a Chrome trace to spans, or the name of a mapping that is shipped, such as
        ``"megascan"``. Shipped ones are recognized without it. `map` replaces the fields of a mapping.
    only
        Slices of a Chrome trace to read, by text or argument, such as ``{"tid": 1}`` or ``{"args.run": "b"}``.
    steps
        Steps to read, such as ``"100:110"`` for 100 to 109, or a StepRange; None for all. The result is as if only
        these steps had been recorded: the clocks, too, are aligned with what happened in them. The other steps of
        recordings and stored runs take no memory.
    align
        Align the clocks of all machines to the clock of the first one. `timeline.alignment` describes the result and
        `timeline.clocks` has the guaranteed bound of each clock. With False, timestamps stay as recorded, on the
        wall clock of each machine.
    on_progress
        Called with the number of files read so far and the number of all files, first with 0.

    Problems that leave the rest of the data usable are rows of `timeline.diagnostics`; `timeline.is_partial` is True
    if data are known to be missing.

    Raises InputError if a path does not exist or has an unknown format, if two files contain the same rank, or if a
    limit is exceeded; TableError if a CSV or Parquet file is not a spans table; TypeError, ValueError and UsageError
    for a wrong keyword.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "spans.csv")
    ...     _ = table.write_text("rank,lane,kind,start_ns,end_ns\n0,compute,forward,0,5\n")
    ...     timeline = read(table)
    >>> timeline.spans.height, timeline.is_partial
    (1, False)
    """
    facts: RunFacts = {
        "pp": pp, "tp": tp, "dp": dp, "cp": cp, "order": order,
        "schedule": schedule, "microbatches": microbatches, "pattern": pattern,
        "attempt": attempt, "pipeline": pipeline, "kernels": kernels,
        "map": map, "mapping": mapping, "only": only,
        "steps": steps,
    }  # fmt: skip
    options = read_options(**facts)
    with limits_in_force(checked_limits(limits)):
        inputs = inputs_of(paths, is_mapped=options.mapping is not None)
        stored = stored_run_of(inputs)
        if stored is not None:
            return with_addresses(open_stored_run(stored, facts, align=align))
        if on_progress is not None:
            options = replace(options, on_read=_counter(inputs.file_count, on_progress))
        timeline = with_addresses(read_inputs(inputs, options))
        return align_timeline(timeline) if align else timeline


def inputs_of(paths: Sequence[str | os.PathLike[str]], *, is_mapped: bool = False) -> Inputs:
    """Return the files that `paths` name or contain, by reader. Raises InputError as `read` does.

    With `is_mapped`, the call states how the slices of a trace are spans: no other reader interprets such a trace.
    Raises UsageError if there is none.
    """
    if not paths:
        raise TypeError("expected at least one path of a recording or trace")
    registry = load_registry((*MAPPED_READERS, *READERS) if is_mapped else READERS)
    inputs = find_inputs(local_paths(paths, registry.readers), registry)
    if is_mapped and not any(reader.is_mapped for reader in inputs.files):
        raise UsageError.only_with("--map, --mapping and --only", "Chrome traces")
    return inputs


def read_options(**facts: Unpack[RunFacts]) -> ReadOptions:
    """Return validated facts as the options that readers take. Raises TypeError and ValueError."""
    for name in (*DIMENSIONS, "microbatches"):
        check_count(name, facts.get(name))
    layout: dict[str, Any] = {name: facts[name] for name in LAYOUT_KEYWORDS if name in facts}  # type: ignore[literal-required]  # the names are keys of RunFacts
    attempt = facts.get("attempt")
    check_count("attempt", attempt, least=0)
    request = mapping_request(facts.get("map"), facts.get("mapping"), facts.get("only"))
    if request is not None and request.mapping is not None and facts.get("pattern") is not None:
        raise UsageError.one_of(("--mapping", "--pattern"), ("both",))
    return ReadOptions(
        Layout(**layout),
        facts.get("schedule"),
        facts.get("microbatches"),
        facts.get("pattern"),
        attempt,
        facts.get("pipeline"),
        kernels=facts.get("kernels", False),
        mapping=request,
        steps=wanted_steps(facts.get("steps")),
    )


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise TypeError or ValueError if the value of a keyword is not a count; None is accepted."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def _counter(file_count: int, on_progress: Callable[[int, int], object]) -> Callable[[Path], object]:
    """Return a callback for readers that counts files and reports each to `on_progress`."""
    done = 0
    on_progress(0, file_count)

    def count(_path: Path) -> None:
        nonlocal done
        done += 1
        on_progress(done, file_count)

    return count


def align_timeline(timeline: Timeline) -> Timeline:
    """Return a timeline that was read with `align=False` with the clocks of its machines aligned.

    `alignment` of the result describes how; it contains no machine if all ranks share one clock.
    """
    return aligned(timeline)


def clock_report(timeline: Timeline) -> ClockReport:
    """Return `timeline.alignment`, or an empty report for a timeline that was not aligned."""
    found = timeline.alignment
    return found if isinstance(found, ClockReport) else ClockReport(())


def read_paddle_logs(
    log_dir: str | os.PathLike[str],
    devices: Sequence[int] | None = None,
    *,
    multi_machine: bool = False,
    **facts: Unpack[RunFacts],
) -> Timeline:
    """Return the Timeline of the worker logs of Paddle in a directory, with timestamps as logged.

    `devices` selects logs by their number; None reads all. With `multi_machine`, each subdirectory with logs is one
    machine. `facts` are keywords of `read`. Raises InputError if there are no logs, or none has a line of an action.
    """
    options = read_options(**facts)
    if options.attempt:
        raise InputError.no_attempt(options.attempt, 1)
    with limits_in_force(checked_limits(facts.get("limits"))):
        logs = find_worker_logs(Path(log_dir), devices, multi_machine=multi_machine)
        for log in logs:
            require_text_name(log.path)
        timeline = merge_timelines([read_worker_logs(logs, options)], options.layout.rank_count)
        placed = place_stages(with_schedule(timeline, options.schedule), options.layout)
        selected = select_steps(placed, options.steps)
        require_step_sizes(selected)
        return selected
