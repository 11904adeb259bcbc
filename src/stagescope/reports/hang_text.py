"""A HangReport as sentences, a table and JSON."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from stagescope.analysis.hangs.conditions import BUSY, ENDED, GONE, RUNNING, SILENT, WAITING, waits_of
from stagescope.analysis.hangs.culprits import HANGS, IS_OVER
from stagescope.analysis.hangs.waiting import group_of
from stagescope.model.process_states import ACTIVITY, WAIT
from stagescope.vocabulary.kinds import RECEIVES, SENDS
from stagescope.vocabulary.number_ranges import compact_ranges, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.analysis.hangs.culprits import HangReport
    from stagescope.model.process_states import Call, ProcessState

MOST_ROWS = 64
MINUTE_S = 60.0
OWN_FRAMES = ("/stagescope/record/", "/torch/", "/paddle/", "/deepspeed/", "/megatron/core/", "<frozen")
"""Parts of the paths of frames that are not the training's own code."""


def age_text(seconds: float) -> str:
    """Return a time that has passed, in whole seconds up to a minute.

    >>> age_text(16.4), age_text(125), age_text(7300)
    ('16 s', '2 min 5 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < MINUTE_S:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def call_text(call: Call) -> str:
    """Return what a call is, and where."""
    kind = call.kind.replace("_", " ")
    if call.kind == ACTIVITY:
        return call.name or "an activity of the host"
    operation, group = group_of(call)
    if call.pair is not None and group:
        return f"{operation}, number {call.pair} in {group}"
    places = []
    if call.microbatch is not None:
        places.append(f"micro-batch {call.microbatch}")
    if call.stage is not None:
        places.append(f"stage {call.stage}")
    where = f" of {', '.join(places)}" if places else ""
    if call.peer is None:
        return kind + where
    is_send = call.kind in SENDS or call.kind == "send"
    is_receive = call.kind in RECEIVES or call.kind == "recv"
    direction = "to" if is_send else "from" if is_receive else "with"
    return f"{kind}{where} {direction} rank {call.peer}"


def doing_text(state: ProcessState, condition: str) -> str:
    """Return what a process is doing, as a part of a sentence that begins with its rank."""
    if condition == ENDED:
        return f"has ended ({_end_text(state)})"
    if condition == GONE:
        return f"was killed or crashed: its process {state.pid} does not exist any more"
    if condition == SILENT:
        exists = "exists, but has" if state.exists else "has"
        return (
            f"{exists} written nothing for {age_text(state.written_s)}: killed, stopped, "
            "or in code that holds the interpreter or the file system"
        )
    quiet = age_text(state.quiet_s or 0.0)
    if condition == RUNNING:
        seen = (
            f"its last span ended {quiet} ago" if state.is_recorded else f"step {state.step} is not recorded"
        )
        return f"is running: {seen}"
    if condition == WAITING:
        return f"has been waiting for {quiet}, for {' and '.join(map(call_text, waits_of(state)))}"
    doing = next((call for call in state.calls if call.kind != WAIT), None)
    what = f"been in {call_text(doing)}" if doing is not None else "recorded nothing"
    line = own_line(state)
    return f"has {what} for {quiet}" + (f", at {line}" if line else "")


def own_line(state: ProcessState) -> str:
    """Return the innermost frame of the training's own code, or of any code without one."""
    own = (frame for frame in state.stack if not any(part in frame for part in OWN_FRAMES))
    return next(own, state.stack[0] if state.stack else "")


def hang_sentences(report: HangReport) -> list[str]:
    """Return why the training does not go on, the most important sentence first."""
    states = {state.rank: state for state in report.states}
    if report.outcome == IS_OVER:
        return list(_end_sentences(report))
    if report.outcome != HANGS:
        return [_running_sentence(report)]
    found = [
        f"Ranks of {each.group} call different collectives as number {each.number}: {_operations(each.operations)}."
        for each in report.mismatches
    ]
    found += [_circle_sentence(report, circle) for circle in report.circles]
    named = {rank for circle in report.circles for rank in circle}
    named |= {rank for each in report.mismatches for ranks in each.operations.values() for rank in ranks}
    for rank in report.culprits:
        if rank in named:
            continue
        if rank not in states:
            found.append(f"Rank {rank} holds up the training: it has no recording.{_followers(report, rank)}")
            continue
        doing = doing_text(states[rank], report.conditions[rank])
        found.append(f"Rank {rank} holds up the training: it {doing}.{_followers(report, rank)}")
    return found or [f"{len(report.waiting)} ranks wait, and nothing that they wait for is known."]


def _running_sentence(report: HangReport) -> str:
    if report.awaited:
        count, ranks = len(report.awaited) + len(report.states), compact_ranges(report.awaited)
        return f"The training is starting, waiting for {len(report.awaited)} of {count} ranks ({ranks})."
    ended = _end_parts(report)
    if not ended:
        return "The training is running: no rank has stopped recording."
    running = [rank for rank, condition in report.conditions.items() if condition == RUNNING]
    verb = "has" if len(running) == 1 else "have"
    return f"The training is running: {', '.join([f'{ranks_text(running)} {verb} not stopped', *ended])}."


def _end_parts(report: HangReport) -> list[str]:
    """Return how the processes that do not exist any more have ended."""
    killed = [rank for rank, condition in report.conditions.items() if condition == GONE]
    parts = []
    if killed:
        parts.append(f"{ranks_text(killed)} {'was' if len(killed) == 1 else 'were'} killed or crashed")
    failed = [state for state in report.states if state.rank in report.failed and state.rank not in killed]
    raised = [state.rank for state in failed if state.exception is not None]
    parts += [f"{ranks_text(raised)} ended by an exception"] if raised else []
    for status in sorted({state.exit_status or 0 for state in failed if state.exception is None}):
        ranks = [state.rank for state in failed if state.exception is None and state.exit_status == status]
        parts.append(f"{ranks_text(ranks)} ended with exit status {status}")
    others = [rank for rank, each in report.conditions.items() if each == ENDED and rank not in report.failed]
    return [*parts, *([f"{ranks_text(others)} ended"] if others else [])]


def _end_text(state: ProcessState) -> str:
    return state.exception or (
        f"exit status {state.exit_status}" if state.exit_status else state.end_reason or ""
    )


def _end_sentences(report: HangReport) -> Iterator[str]:
    """Yield how the processes ended, and which one was the first if ranks failed."""
    yield f"The training is over: {', '.join(_end_parts(report))}."
    first = next((state for state in report.states if state.rank == report.first_to_end), None)
    if first is not None and first.rank in report.failed and first.exception is not None:
        yield f"Rank {first.rank} ended first, by {first.exception}."
    elif first is not None and first.exit_status:
        yield f"Rank {first.rank} ended first, with exit status {first.exit_status}."
    elif first is not None:
        yield f"Rank {first.rank} ended first, without an exception."


def _operations(operations: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{ranks_text(ranks)} {name}" for name, ranks in operations.items())


def _circle_sentence(report: HangReport, circle: tuple[int, ...]) -> str:
    waits = []
    for place, rank in enumerate(circle):
        following = circle[(place + 1) % len(circle)]
        call = next(each.call for each in report.waiting[rank] if each.rank == following)
        waits.append(f"rank {rank} for rank {following} ({call_text(call)})")
    return f"{ranks_text(circle).capitalize()} wait for each other: {', '.join(waits)}."


def _followers(report: HangReport, culprit: int) -> str:
    """Return which ranks wait for one that holds up the training, directly and through others."""
    direct, through = [], defaultdict(list)
    for rank in report.waiting:
        chain = report.chain_of(rank)
        if not chain or chain[-1].rank != culprit:
            continue
        if len(chain) == 1:
            direct.append(rank)
        else:
            through[chain[-2].rank].append(rank)
    parts = []
    if direct:
        verb = "waits" if len(direct) == 1 else "wait"
        parts.append(f"{ranks_text(direct).capitalize()} {verb} for it")
    parts += [f"{ranks_text(ranks)} through rank {by}" for by, ranks in sorted(through.items())]
    return f" {', '.join(parts)}." if parts else ""


def hang_rows(report: HangReport, most: int = MOST_ROWS) -> Iterator[tuple[str, ...]]:
    """Yield rank, condition, step and what each process is doing, those that hold up the training first."""
    order = {rank: place for place, rank in enumerate(report.culprits)}
    states = sorted(report.states, key=lambda state: (order.get(state.rank, len(order)), state.rank))
    for state in states[:most]:
        condition = report.conditions[state.rank]
        step = "" if state.step is None else str(state.step)
        yield str(state.rank), condition, step, _cell(state, condition)


def _cell(state: ProcessState, condition: str) -> str:
    age = age_text(state.written_s if condition in (GONE, SILENT) else state.quiet_s or 0.0)
    if condition == WAITING:
        return f"{' and '.join(map(call_text, waits_of(state)))}, for {age}"
    if condition == BUSY:
        doing = next((call for call in state.calls if call.kind != WAIT), None)
        what = call_text(doing) if doing is not None else own_line(state) or "nothing recorded"
        return f"{what}, for {age}"
    if condition == RUNNING and not state.is_recorded:
        return "not recorded"
    return _end_text(state) if condition == ENDED else f"{age} ago"


def hang_json(report: HangReport) -> dict[str, Any]:
    """Return a report as JSON: outcome, sentences, culprits, circles, mismatches, and every rank."""
    return {
        "outcome": report.outcome,
        "is_hung": report.is_hung,
        "sentences": hang_sentences(report),
        "culprits": list(report.culprits),
        "circles": [list(circle) for circle in report.circles],
        "mismatches": [each._asdict() for each in report.mismatches],
        "missing_ranks": list(report.missing),
        "awaited_ranks": list(report.awaited),
        "ranks": [_rank_json(report, state) for state in report.states],
    }


def _rank_json(report: HangReport, state: ProcessState) -> dict[str, Any]:
    return {
        "rank": state.rank,
        "host": state.host,
        "pid": state.pid,
        "condition": report.conditions[state.rank],
        "step": state.step,
        "end_reason": state.end_reason,
        "exception": state.exception,
        "exit_status": state.exit_status,
        "is_recorded": state.is_recorded,
        "quiet_s": state.quiet_s,
        "written_s": state.written_s,
        "calls": [_call_json(call) for call in state.calls],
        "waits_for_ranks": [each.rank for each in report.waiting.get(state.rank, ())],
        "chain": [each.rank for each in report.chain_of(state.rank)],
        "stack": list(state.stack),
        "threads": {name: list(stack) for name, stack in state.threads.items()},
    }


def _call_json(call: Call) -> dict[str, Any]:
    facts = {
        "call": call.kind, "stage": call.stage, "microbatch": call.microbatch, "peer": call.peer,
        "pair": call.pair, "name": call.name,
    }  # fmt: skip
    known: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    if call.waits_for:
        known["for"] = [_call_json(each) for each in call.waits_for]
    return known
