"""Read what the processes of a running training recorded last, without reading the whole recordings."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stagescope.ingest.recording.frames import Contents, read_contents, with_earlier
from stagescope.ingest.recording.living import can_restart, exists, is_certain
from stagescope.ingest.streams import open_regular
from stagescope.model.process_states import Call, ProcessState
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HEAD_BYTES, TAIL_BYTES = 2**18, 2**20
"""The header is at the beginning of a file, and what a process did last at its end."""
ENOUGH_SPANS = 1000
"""With fewer spans in the last file of a process, the file before it is read as well."""
MOST_LISTED = 64
"""Calls and frames of one state that are used."""
SILENT_BEFORE_S = 15.0
"""A process that wrote nothing for so long before others began, and has not ended its recording, was of an earlier
attempt: processes write every four seconds.
"""


def read_process_states(directories: Iterable[str | os.PathLike[str]]) -> list[ProcessState]:
    """Return the state of each rank, from the latest recording of it, in the order of ranks.

    Ranks that have not recorded anything in the last attempt are left out.

    Raises InputError if there is no recording in the directories, or if none of them can be read.
    """
    found: dict[int, _Dated] = {}
    refused: InputError | None = None
    paths = [Path(directory) for directory in directories]
    for files in _newest_files(paths):
        try:
            dated = _dated_state(files)
        except InputError as error:
            refused = refused or error
            continue
        if dated is not None and (
            dated.state.rank not in found or dated.began_ns >= found[dated.state.rank].began_ns
        ):
            found[dated.state.rank] = dated
    if not found:
        raise refused or InputError.no_recordings(paths[0])
    return [dated.state for _, dated in sorted(_last_attempt(found).items())]


class _Dated(NamedTuple):
    """A state, and when its process began and last wrote, on the wall clock of its machine."""

    state: ProcessState
    began_ns: int
    last_ns: int


def _dated_state(files: Sequence[Path]) -> _Dated | None:
    """Return the state of the process that wrote these files, None if its rank is not known.

    A process may end its recording and exit between the look at its file and the look for it: then, the file has more.
    """
    for _ in range(2):
        file, contents, modified_s = _read_newest(files)
        rank, began_ns = contents.header.get("rank"), contents.header.get("process_start_ns")
        if type(rank) is not int:
            return None
        state = _state(file, contents, rank, modified_s)
        if state.end_reason is not None or state.exists is not False:
            break
    last_ns = _wall_ns(contents, max(_moments(contents), default=0))
    return _Dated(state, _wall_ns(contents, began_ns if isinstance(began_ns, int) else 0), last_ns)


def _last_attempt(found: Mapping[int, _Dated]) -> dict[int, _Dated]:
    """Return the states of processes that existed when the newest one began: all of an attempt exist at once."""
    newest_ns = max(dated.began_ns for dated in found.values())
    kept = {}
    for rank, dated in found.items():
        margin_ns = 0 if dated.state.end_reason is not None else int(SILENT_BEFORE_S * 1e9)
        if dated.began_ns >= newest_ns or dated.last_ns + margin_ns >= newest_ns:
            kept[rank] = dated
    return kept


def _newest_files(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the last two files of each recording, the last one last: a new segment has little content yet."""
    newest: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for path in paths:
        for file in path.rglob(f"*{fmt.SUFFIX}") if path.is_dir() else [path]:
            name, segment = _recording_of(file.name)
            newest.setdefault((file.parent, name), []).append((segment, file))
    return [[file for _, file in sorted(files)[-2:]] for _, files in sorted(newest.items())]


def _recording_of(name: str) -> tuple[str, int]:
    """Return the name of the recording that a file belongs to, and the number of its segment.

    >>> _recording_of("rank-00000.sscope"), _recording_of("rank-00000.12.sscope")
    (('rank-00000', 0), ('rank-00000', 12))

    A process that is not the first one with its rank adds its id, usually to the name of the recording.

    >>> _recording_of("rank-00000-4711.1.sscope"), _recording_of("rank-00000.1-4711.sscope")
    (('rank-00000-4711', 1), ('rank-00000-4711', 1))
    """
    base = name.removesuffix(fmt.SUFFIX)
    stem, _, rest = base.partition(".")
    segment, dash, process = rest.partition("-")
    return (f"{stem}{dash}{process}", int(segment)) if segment.isdecimal() else (base, 0)


def _read_newest(files: Sequence[Path]) -> tuple[Path, Contents, float]:
    """Return the last file with its content and the time of its last change; a new segment with that before it.

    The file before may have been deleted since it was found. Raises InputError if the last one cannot be read.
    """
    contents, modified_s = _read(files[-1])
    number = contents.header.get("segment", 1)
    if len(files) > 1 and number and len(contents.spans) < ENOUGH_SPANS:
        with suppress(InputError):
            earlier, _ = _read(files[0])
            if not contents.header or earlier.header.get("recording") == contents.header.get("recording"):
                contents = with_earlier(earlier, contents)
    return files[-1], contents, modified_s


def _read(path: Path) -> tuple[Contents, float]:
    try:
        with open_regular(path) as file:
            facts = os.fstat(file.fileno())
            data = file.read(HEAD_BYTES)
            if facts.st_size > HEAD_BYTES:
                file.seek(max(HEAD_BYTES, facts.st_size - TAIL_BYTES))
                data += file.read(TAIL_BYTES)
    except OSError as reason:
        raise InputError.cannot_read(path, reason) from reason
    return read_contents(data), facts.st_mtime


def _wall_ns(contents: Contents, moment_ns: int) -> int:
    """Return a moment of the process's clock on the wall clock, by the latest anchor."""
    if not len(contents.anchors):
        return moment_ns
    last = contents.anchors[-1]
    return moment_ns + int(last["realtime_ns"]) - int(last["monotonic_ns"])


def _state(path: Path, contents: Contents, rank: int, modified_s: float) -> ProcessState:
    header, raw = contents.header, contents.state
    spans = contents.spans
    ends_ns = np.sort(spans["end_ns"]) if len(spans) else np.zeros(0, np.int64)
    stated_ns = _number(raw.get("time_ns"))
    moments = _moments(contents)
    now_s = time.time()
    by_clock_s = now_s - _wall_ns(contents, max(moments, default=0)) / 1e9
    written_s = max(0.0, min(now_s - modified_s, by_clock_s))
    is_recorded = raw.get("is_recorded") is not False
    quiet_s = now_s - _wall_ns(contents, int(ends_ns[-1])) / 1e9 if len(ends_ns) else None
    if not is_recorded and stated_ns is not None:
        began_ns = _number(raw.get("step_since_ns")) or stated_ns
        quiet_s = (stated_ns - began_ns) / 1e9  # what happened since that report is not known
    return ProcessState(
        rank,
        str(path),
        world_size=_number(header.get("world_size")),
        host=_text(header.get("host")),
        pid=_number(header.get("pid")),
        step=_step(contents, raw),
        end_reason=_text(contents.end.get("reason")) or "exit" if contents.end else None,
        exception=_text((contents.end or {}).get("exception")),
        exit_status=_number((contents.end or {}).get("exit_status")) or None,
        ended_ns=_wall_ns(contents, max(moments, default=0)) if contents.end else None,
        written_s=written_s,
        quiet_s=None if quiet_s is None else max(0.0, quiet_s),
        steps_per_s=_steps_per_s(contents),
        longest_gap_s=_longest_gap_s(contents),
        is_recorded=is_recorded,
        began_s=max(0.0, now_s - _wall_ns(contents, _recording_began_ns(contents)) / 1e9),
        exists=exists(header),
        is_certain=is_certain(header),
        can_restart=can_restart(header),
        calls=tuple(_call(each) for each in _objects(raw.get("calls"))),
        state_s=None if stated_ns is None else max(0.0, now_s - _wall_ns(contents, stated_ns) / 1e9),
        groups={
            str(name): count for name, count in _mapping(raw.get("groups")).items() if type(count) is int
        },
        stack=_texts(raw.get("stack")),
        threads={str(name): _texts(stack) for name, stack in _mapping(raw.get("threads")).items()},
        request=dict(_mapping(raw.get("control"))),
    )


def _moments(contents: Contents) -> list[int]:
    """Return when the process last did what it records, on its own clock."""
    stated_ns = _number(contents.state.get("time_ns"))
    moments = [int(contents.spans["end_ns"].max())] if len(contents.spans) else []
    moments += [stated_ns] if stated_ns is not None else []
    for anchors in (contents.anchors, contents.raw_anchors):
        moments += [int(anchors["monotonic_ns"].max())] if len(anchors) else []
    return moments


def _recording_began_ns(contents: Contents) -> int:
    """Return when a process recorded its first span, as far as the file has it, on its own clock."""
    is_first = not contents.header.get("segment")
    if is_first and len(contents.anchors):
        return int(contents.anchors["monotonic_ns"].min())
    began_ns = contents.header.get("process_start_ns")
    return began_ns if isinstance(began_ns, int) else min(_moments(contents), default=0)


def _step(contents: Contents, raw: Mapping[str, Any]) -> int | None:
    """Return the step in progress: that of the last state or of a later span."""
    stated = _number(raw.get("step"))
    steps = contents.spans["step"]
    known = steps[(steps >= 0) & (contents.spans["kind"] != STEP_CODE)] if len(steps) else steps
    last = int(known[-1]) if len(known) else None
    numbers = [number for number in (stated, last) if number is not None and number >= 0]
    return max(numbers, default=None)


def _steps_per_s(contents: Contents) -> float:
    """Return the rate of the steps that were read."""
    spans = contents.spans
    stepped = spans["step"] >= 0
    if not stepped.any():
        return 0.0
    steps, ends_ns = spans["step"][stepped], spans["end_ns"][stepped]
    length_s = float(ends_ns.max() - ends_ns.min()) / 1e9
    return float(steps.max() - steps.min()) / length_s if length_s > 0 else 0.0


def _longest_gap_s(contents: Contents) -> float:
    """Return the longest time without a span after the first of the steps that were read, which takes longer."""
    spans = contents.spans
    if not len(spans):
        return 0.0
    later = spans["step"] > spans["step"].min()
    gaps_ns = np.diff(np.sort(spans["end_ns"][later]))
    return float(gaps_ns.max()) / 1e9 if len(gaps_ns) else 0.0


def _call(facts: Mapping[str, Any]) -> Call:
    numbers = {name: _number(facts.get(name)) for name in ("stage", "microbatch", "peer", "pair", "since_ns")}
    waits_for = tuple(_call({**each, "for": None}) for each in _objects(facts.get("for")))
    return Call(
        _text(facts.get("call")) or "unknown", name=_text(facts.get("name")), waits_for=waits_for, **numbers
    )


def _objects(value: object) -> Sequence[Mapping[str, Any]]:
    listed = value if isinstance(value, list) else []
    return [each for each in listed if isinstance(each, dict)][:MOST_LISTED]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value[:MOST_LISTED]) if isinstance(value, list) else ()


def _number(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 2**63 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
