"""Pipelines with known durations, transfers and launch delays, executed by the dependency rule.

A plain loop that shares no code with the simulator of stagescope.schedules: an action starts `launch_delay_ns` after
its rank is free and its inputs have arrived, `hop_ns` after the end of their producers.
"""

from __future__ import annotations

import json

from places import DATA
from random_pipelines import timeline_of
from stagescope.schedules import parse_action

EXAMPLE = json.loads((DATA / "golden" / "ledger_example.json").read_text())
UNIT_NS = 1_000_000_000
KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def run_rows(order, action_ns, *, hop_ns=0, launch_delay_ns=0, first_rank=0, step=0, start_ns=0):
    """Return the spans of one step; `action_ns` is a function of an action (without partner) and its rank."""
    todo = {rank: [parse_action(text) for text in row] for rank, row in order.items()}
    holder = {str(part): rank for rank, row in todo.items() for action in row for part in action.parts}
    last = max(part.stage for row in todo.values() for action in row for part in action.parts)
    free_ns, end_ns, rows = dict.fromkeys(todo, start_ns), {}, []
    while any(todo.values()):
        before = len(rows)
        for rank, actions in todo.items():
            while actions and (needed := _needs(actions[0], last, holder)) <= end_ns.keys():
                action = actions.pop(0)
                arrivals = {name: end_ns[name] + hop_ns * (holder[name] != rank) for name in needed}
                begin_ns = max([free_ns[rank], *arrivals.values()]) + launch_delay_ns
                free_ns[rank] = begin_ns + max(action_ns(part, rank) for part in action.parts)
                for part in action.parts:
                    end_ns[str(part)] = free_ns[rank]
                    common = {"rank": first_rank + rank, "step": step, "microbatch": part.microbatch}
                    pair = {"pair": len(rows)} if action.partner and part == action.parts[0] else {}
                    pair = {"pair": rows[-1]["pair"]} if action.partner and not pair else pair
                    rows.append(
                        {**common, "stage": part.stage, "lane": "compute", "kind": KINDS[part.kind],
                         "start_ns": begin_ns, "end_ns": free_ns[rank], **pair}
                    )  # fmt: skip
        assert len(rows) > before, "the order deadlocks"
    return rows + (_transfers(rows, holder, hop_ns, first_rank) if hop_ns else [])


def run(order, action_ns, *, steps=1, **options):
    """Return the Timeline of one pipeline that runs `steps` equal steps."""
    rows, start_ns = [], 0
    for step in range(steps):
        rows += run_rows(order, action_ns, step=step, start_ns=start_ns, **options)
        start_ns = max(row["end_ns"] for row in rows) + 1_000
    return timeline_of(rows, 1 + max(row["rank"] for row in rows))


def example_timeline(
    scales=({}, EXAMPLE["peer_scale"], EXAMPLE["peer_scale"]), gap=EXAMPLE["host_gap_per_op"]
):
    """Return the pipeline of golden/ledger_example.json with its replicas; one unit is a second here."""
    order = {int(rank): row for rank, row in EXAMPLE["orders"].items()}
    rows = []
    for number, scale in enumerate(scales):

        def action_ns(part, rank, scale=scale):
            return round(EXAMPLE["durations"][str(part)] * UNIT_NS / scale.get(str(rank), 1))

        rows += run_rows(
            order,
            action_ns,
            hop_ns=round(EXAMPLE["comm"] * UNIT_NS),
            launch_delay_ns=round(gap * UNIT_NS),
            first_rank=4 * number,
        )
    return timeline_of(rows, 4 * len(scales))


def _needs(action, last, holder):
    """Return the names of the parts whose results an action needs."""
    needed = set()
    for part in action.parts:
        backward = "I" if f"I{part.stage}.{part.microbatch}" in holder else "B"
        if part.kind == "F" and part.stage:
            needed.add(f"F{part.stage - 1}.{part.microbatch}")
        if part.kind == "W":
            needed.add(f"I{part.stage}.{part.microbatch}")
        if part.kind in "BI":
            needed.add(f"F{part.stage}.{part.microbatch}")
            if part.stage < last:
                above = "I" if f"I{part.stage + 1}.{part.microbatch}" in holder else backward
                needed.add(f"{above}{part.stage + 1}.{part.microbatch}")
    return needed - {str(part) for part in action.parts}


def _transfers(rows, holder, hop_ns, first_rank):
    transfers = []
    for row in rows:
        letter = {name: letter for letter, name in KINDS.items()}[row["kind"]]
        towards = {"F": 1, "B": -1, "I": -1, "W": 0}[letter]
        names = [
            f"{other}{row['stage'] + towards}.{row['microbatch']}"
            for other in {"F": "F", "W": ""}.get(letter, "BI")
        ]
        target = next((holder[name] + first_rank for name in names if name in holder), row["rank"])
        if not towards or target == row["rank"]:
            continue
        way = "forward" if letter == "F" else "backward"
        times = {
            "start_ns": row["end_ns"],
            "end_ns": row["end_ns"] + hop_ns,
            "lane": "comm",
            "step": row["step"],
        }
        common = {**times, "microbatch": row["microbatch"]}
        transfers += [
            {**common, "rank": row["rank"], "stage": row["stage"], "kind": f"send_{way}", "peer": target},
            {
                **common,
                "rank": target,
                "stage": row["stage"] + towards,
                "kind": f"recv_{way}",
                "peer": row["rank"],
            },
        ]
    return transfers
