"""Generated Ascend profiles: the databases of a whole cluster, and the planted truth.

The schema is that of the documentation of the msprof export (Ascend/msprof,
docs/en/user_guide/profile_data_file_references_db.md), the marks are those of the pp_chart guide of msprof-analyze
26.2 (scenario 1, and scenario 2 for DualPipeV). Times are simulated with random costs. `write_cluster`
returns the truth in the times of the databases; faults are planted afterwards, with `edit`, `lose_mark`, `add_mark`
and `lose_op`.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope import schedules
from stagescope.schedules.catalog import find_schedule
from stagescope.schedules.placement import stages_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.schedules import Action, Simulation

EPOCH_NS = 1_763_600_000_123_456_789
STEP_GAP_NS, LAUNCH_LEAD_NS, REPLICA_LAG_NS, HOP_NS = 1_000_000, 200_000, 7_000, 40_000
FIRST_MARK_ID = 4_000_000_001
"""START_CONNECTION_ID_MSTX of Ascend/msprof: the first connection id of marks."""

NO_RANK = 4_294_967_295
MESSAGE_BYTES = 8_388_608
DATABASE = "ascend_pytorch_profiler_{}.db"

SCHEMA = """
CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA (name TEXT, value TEXT);
CREATE TABLE MSTX_EVENTS (startNs INTEGER, endNs INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,
  message INTEGER, globalTid INTEGER, endGlobalTid INTEGER, domainId INTEGER, connectionId INTEGER);
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,
  globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER);
CREATE INDEX TaskIndex ON TASK (startNs, globalTaskId);
CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER,
  opId INTEGER PRIMARY KEY, relay INTEGER, retry INTEGER, dataType INTEGER, algType INTEGER, count NUMERIC,
  opType INTEGER, deviceId INTEGER);
CREATE TABLE COMMUNICATION_TASK_INFO (name INTEGER, globalTaskId INTEGER, taskType INTEGER, planeId INTEGER,
  groupName INTEGER, notifyId INTEGER, rdmaType INTEGER, srcRank INTEGER, dstRank INTEGER, transportType INTEGER,
  size INTEGER, dataType INTEGER, linkType INTEGER, opId INTEGER, isMaster INTEGER, bandwidth NUMERIC);
CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,
  connectionId INTEGER PRIMARY KEY, name INTEGER);
CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockDim INTEGER, mixBlockDim INTEGER,
  taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, inputShapes INTEGER,
  outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, attrInfo INTEGER);
CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER);
CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT);
CREATE TABLE SESSION_TIME_INFO (startTimeNs INTEGER, endTimeNs INTEGER);
CREATE TABLE ENUM_HCCL_DATA_TYPE (id INTEGER, name TEXT);
INSERT INTO ENUM_HCCL_DATA_TYPE VALUES (2, 'INT32'), (3, 'FP16'), (4, 'FP32'), (11, 'BFP16');
"""

NOISE = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
INSERT INTO TASK SELECT :start + i * :apart, :start + i * :apart + :apart / 2, 0, i + 1, 100000000 + i, 4711,
  1, 4294967295, 2 + i % 5, i % 65536, 4294967295 FROM n;
"""
NOISE_INFO = """
INSERT INTO COMPUTE_TASK_INFO SELECT 268435456 + taskId, globalTaskId, 24, 0, 1, 268435457, 268435458, 268435459,
  268435460 + taskId % 999, 268435458, 268435459, 268435461 + taskId % 999, 268435462 FROM TASK
"""


@dataclass(frozen=True)
class Cluster:
    """A run and how it was profiled.

    `numbered` puts current_microbatch (and model_chunk_id where there are several) into the marks of forwards, as
    scenario 2 always does. `transfers`: "single" are hcom_send and hcom_receive, "batched" hcom_batchSendRecv,
    "marks" the mstx marks of communication at Level_none, "none" nothing. `declared` writes pp_info and
    distributed_args. `skew_ns` is the standard deviation of the hosts' clocks.
    """

    schedule: str = "1f1b"
    microbatches: int = 8
    steps: int = 2
    chunks: int | None = None
    pp: int = 4
    dp: int = 1
    tp: int = 1
    cp: int = 1
    seed: int = 0
    numbered: bool = False
    transfers: str = "single"
    declared: bool = True
    step_time: bool = True
    noise_tasks: int = 0
    skew_ns: int = 0
    ranks_per_host: int = 8
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Ranks of the whole cluster."""
        return self.pp * self.dp * self.tp * self.cp

    @property
    def width(self) -> int:
        """Number of parallel pipelines: rank = stage * width + replica, Megatron's order tp-cp-ep-dp-pp."""
        return self.dp * self.tp * self.cp

    @property
    def chunk_count(self) -> int:
        """Model chunks per rank."""
        return self.chunks or find_schedule(self.schedule).chunks

    def stages(self, pp: int) -> tuple[int, ...]:
        """Return the stages of a pipeline rank, chunk by chunk."""
        return stages_of(find_schedule(self.schedule).placement, self.pp, self.chunk_count, pp)


class Truth(NamedTuple):
    """The planted truth: in the times of each rank's database, with the columns of model/tables.py.

    actions     rank, step, kind, stage, chunk, microbatch, pair, message, start_ns, end_ns (an overlapped mark is two
               rows of one pair; the backward of the logits is of kind loss)
    transfers  rank, step, kind, stage, microbatch, peer, name (of the op), message (the same number at both
               ends), start_ns, end_ns
    databases  rank -> its file
    """

    actions: pl.DataFrame
    transfers: pl.DataFrame
    databases: dict[int, Path]


class _Mark(NamedTuple):
    text: str
    step: int
    start_ns: int
    end_ns: int


class _Op(NamedTuple):
    """One end of a message on one rank, or with batches all between two actions of a rank."""

    step: int
    is_send: bool | None
    peers: tuple[int, ...]
    start_ns: int
    end_ns: int


def write_cluster(directory: Path, cluster: Cluster) -> Truth:
    """Return the truth about the cluster whose databases were written below `directory`."""
    planted: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    marks: dict[int, list[_Mark]] = {rank: [] for rank in range(cluster.world_size)}
    began_ns = EPOCH_NS
    bounds = []
    for step in range(cluster.steps):
        simulation = _simulate(cluster, step)
        for rank in range(cluster.world_size):
            pp, replica = divmod(rank, cluster.width)
            origin_ns = began_ns + replica * REPLICA_LAG_NS + _skew_ns(cluster, rank)
            for part, mark in _actions(cluster, simulation, pp):
                planted += [{**each, "rank": rank, "step": step, **_moved(mark, origin_ns)} for each in part]
                marks[rank].append(_Mark(mark["message"], step, **_moved(mark, origin_ns)))
        ends += _message_ends(cluster, simulation, step, began_ns)
        bounds.append((began_ns, began_ns + simulation.makespan_ns))
        began_ns += simulation.makespan_ns + STEP_GAP_NS
    template = _template(directory, cluster, began_ns - EPOCH_NS)
    databases, transfers = {}, []
    for rank in range(cluster.world_size):
        own = sorted(
            (end for end in ends if end["rank"] == rank), key=lambda end: (end["start_ns"], end["message"])
        )
        databases[rank] = path = _path(directory, cluster, rank)
        path.parent.mkdir(parents=True)
        shutil.copyfile(template, path)
        transfers += _write_rank(path, cluster, rank, (marks[rank], own, bounds))
    template.unlink()
    return Truth(_frame(planted, ACTIONS), _frame(transfers, TRANSFERS), databases)


ACTIONS = {
    "rank": pl.Int32, "step": pl.Int32, "kind": pl.String, "stage": pl.Int32, "chunk": pl.Int32, "microbatch": pl.Int32,
    "pair": pl.Int32, "message": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
}  # fmt: skip
TRANSFERS = {
    "rank": pl.Int32, "step": pl.Int32, "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "peer": pl.Int32,
    "name": pl.String, "message": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64,
}  # fmt: skip


def edit(database: Path, *statements: str) -> None:
    """Change one database by SQL."""
    with closing(sqlite3.connect(database)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def lose_mark(database: Path, index: int) -> None:
    """Take away the mark of a rank that is the index-th by the time of its task, communication marks not counted."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT m.rowid FROM MSTX_EVENTS m JOIN TASK t USING (connectionId) JOIN STRING_IDS s ON s.id = m.message "
            "WHERE s.value NOT LIKE '%streamId%' ORDER BY t.startNs"
        ).fetchall()
        connection.execute("DELETE FROM MSTX_EVENTS WHERE rowid = ?", rows[index])
        connection.commit()


def add_mark(database: Path, text: str, start_ns: int, end_ns: int) -> None:
    """Give a rank a mark more, with a task on the device."""
    with closing(sqlite3.connect(database)) as connection:
        _add_mark(connection, _Strings(connection), _Mark(text, 0, start_ns, end_ns))
        connection.commit()


def lose_op(database: Path, name: str) -> None:
    """Take away a communication operation with its tasks."""
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT opId FROM COMMUNICATION_OP o JOIN STRING_IDS s ON s.id = o.opName WHERE s.value = ?"
        (op,) = connection.execute(query, (name,)).fetchone()
        connection.execute("DELETE FROM COMMUNICATION_OP WHERE opId = ?", (op,))
        connection.execute("DELETE FROM COMMUNICATION_TASK_INFO WHERE opId = ?", (op,))
        connection.commit()


def _simulate(cluster: Cluster, step: int) -> Simulation:
    chance = random.Random(f"{cluster.seed}/{step}")  # noqa: S311 - a planted truth, not a secret
    sizes = {"ranks": cluster.pp, "microbatches": cluster.microbatches, "chunks": cluster.chunks}
    order = schedules.order(cluster.schedule, **sizes, **cluster.options)
    cells = [(s, m) for s in range(cluster.pp * cluster.chunk_count) for m in range(cluster.microbatches)]
    forward = {cell: chance.randrange(900_000, 1_100_000) for cell in cells}
    backward = {cell: chance.randrange(1_800_000, 2_200_000) for cell in cells}
    return schedules.simulate(order, schedules.Costs(forward=forward, backward=backward, hop=HOP_NS))


def _skew_ns(cluster: Cluster, rank: int) -> int:
    chance = random.Random(f"{cluster.seed}/host {rank // cluster.ranks_per_host}")  # noqa: S311 - same
    return int(chance.gauss(0, cluster.skew_ns))


def _moved(times: dict[str, Any], origin_ns: int) -> dict[str, int]:
    return {"start_ns": times["start_ns"] + origin_ns, "end_ns": times["end_ns"] + origin_ns}


def _actions(
    cluster: Cluster, simulation: Simulation, pp: int
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Yield the marks of one pipeline rank: the truth rows of each, and the mark."""
    stages = cluster.stages(pp)
    last = cluster.pp * cluster.chunk_count - 1
    times = zip(simulation.starts_ns[pp], simulation.ends_ns[pp], strict=True)
    for number, (action, (began_ns, end_ns)) in enumerate(zip(simulation.order[pp], times, strict=True)):
        start_ns = began_ns
        has_logits = cluster.schedule == "dualpipev" and any(
            j.stage == last and j.kind in "BI" for j in action.parts
        )
        if has_logits:
            cut_ns = start_ns + (end_ns - start_ns) // 10
            of = next(part for part in action.parts if part.stage == last and part.kind in "BI")
            truth = {"kind": "loss", "stage": last, "chunk": stages.index(last), "microbatch": of.microbatch}
            text = str({"name": "backward_step"})
            yield (
                [{**truth, "pair": None, "message": text}],
                {"message": text, "start_ns": start_ns, "end_ns": cut_ns},
            )
            start_ns = cut_ns
        text = _message(cluster, action, stages)
        rows = [
            {"kind": _KINDS[part.kind], "stage": part.stage, "chunk": stages.index(part.stage), "message": text,
             "microbatch": part.microbatch, "pair": number if action.partner else None}
            for part in action.parts
        ]  # fmt: skip
        yield rows, {"message": text, "start_ns": start_ns, "end_ns": end_ns}


_KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def _message(cluster: Cluster, action: Action, stages: tuple[int, ...]) -> str:
    """Return the text that the guide's decorator gives a mark."""
    of_v = cluster.schedule == "dualpipev"
    suffix = "_with_model_graph" if of_v else ""
    if action.kind == "W":
        return str({"name": "WeightGradStore.pop"})
    forward = next((part for part in action.parts if part.kind == "F"), None)
    if forward is None:
        return str({"name": f"backward_step{suffix}"})
    fields: dict[str, object] = {
        "name": "forward_backward_overlaping" if action.partner else f"forward_step{suffix}"
    }
    chunk = stages.index(forward.stage)
    if of_v:  # the second chunk continues the numbering of the first
        fields["current_microbatch"] = forward.microbatch + chunk * cluster.microbatches
    elif cluster.numbered:
        fields["current_microbatch"] = forward.microbatch
        fields |= {"model_chunk_id": chunk} if len(stages) > 1 else {}
    return str(fields)


def _message_ends(cluster: Cluster, simulation: Simulation, step: int, began_ns: int) -> list[dict[str, Any]]:
    """Return both ends of every message of a step, of all replicas.

    A send starts when its action has ended; a receive is posted when its rank has finished the previous action; both
    end when the data have arrived.
    """
    free_ns = {}
    for pp, actions in simulation.order.items():
        before_ns = 0
        for action, end_ns in zip(actions, simulation.ends_ns[pp], strict=True):
            free_ns |= {
                (_DIRECTIONS[part.kind], part.stage, part.microbatch): before_ns for part in action.parts
            }
            before_ns = end_ns
    rows = []
    for number, sent in enumerate(simulation.transfers()):
        direction, (_, stage, microbatch, _) = _DIRECTIONS[sent.producer.kind], sent.producer
        to_stage = stage + 1 if direction == "forward" else stage - 1
        posted_ns = min(sent.start_ns, free_ns[direction, to_stage, microbatch])
        for replica in range(cluster.width):
            sender, receiver = (pp * cluster.width + replica for pp in (sent.sender, sent.receiver))
            for is_send, rank, peer, of, start_ns in (
                (True, sender, receiver, stage, sent.start_ns),
                (False, receiver, sender, to_stage, posted_ns),
            ):
                origin_ns = began_ns + replica * REPLICA_LAG_NS + _skew_ns(cluster, rank)
                rows.append(
                    {"rank": rank, "step": step, "kind": f"{'send' if is_send else 'recv'}_{direction}", "stage": of,
                     "microbatch": microbatch, "peer": peer, "start_ns": start_ns + origin_ns,
                     "end_ns": sent.end_ns + origin_ns, "message": (step * 100_000 + number) * cluster.width + replica}
                )  # fmt: skip
    return rows


_DIRECTIONS = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def _path(directory: Path, cluster: Cluster, rank: int) -> Path:
    profile = f"node{rank // cluster.ranks_per_host}_{4711 + rank}_{20251120090000000 + rank}_ascend_pt"
    return directory / profile / "ASCEND_PROFILER_OUTPUT" / DATABASE.format(rank)


def _template(directory: Path, cluster: Cluster, length_ns: int) -> Path:
    """Return a database with the schema and the noise that all ranks share."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "template"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
        connection.execute("INSERT INTO STRING_IDS VALUES (1, 'AI_CORE')")
        if cluster.noise_tasks:
            apart = max(2, length_ns // cluster.noise_tasks)
            connection.execute(NOISE, {"count": cluster.noise_tasks, "start": EPOCH_NS, "apart": apart})
            connection.execute(NOISE_INFO)
        connection.commit()
    return path


class _Strings:
    """The texts of a database by number."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids = {text: number for number, text in connection.execute("SELECT id, value FROM STRING_IDS")}

    def __getitem__(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = max(self._ids.values(), default=0) + 1
            self._connection.execute("INSERT INTO STRING_IDS VALUES (?, ?)", (self._ids[text], text))
        return self._ids[text]


def _write_rank(
    path: Path,
    cluster: Cluster,
    rank: int,
    content: tuple[list[_Mark], list[dict[str, Any]], list[tuple[int, int]]],
) -> list[dict[str, Any]]:
    """Return the transfers of a rank with the names of their operations, after writing its database."""
    marks, ends, bounds = content
    with closing(sqlite3.connect(path)) as connection:
        strings = _Strings(connection)
        skew_ns = _skew_ns(cluster, rank)
        _write_facts(connection, cluster, rank, [(a + skew_ns, b + skew_ns) for a, b in bounds])
        for mark in marks:
            _add_mark(connection, strings, mark)
        named = _write_transfers(connection, strings, cluster, ends)
        connection.commit()
    return named


def _write_facts(
    connection: sqlite3.Connection, cluster: Cluster, rank: int, bounds: list[tuple[int, int]]
) -> None:
    if cluster.declared:
        sizes = {
            "tensor_model_parallel_size": cluster.tp, "pipeline_model_parallel_size": cluster.pp,
            "data_parallel_size": cluster.dp, "context_parallel_size": cluster.cp, "world_size": cluster.world_size,
        }  # fmt: skip
        kind = cluster.schedule if cluster.schedule != "1f1b" else "None"
        info = {"pp_type": kind, "microbatch_num": cluster.microbatches}
        values = [("pp_info", json.dumps(info)), ("distributed_args", json.dumps(sizes))]
        connection.executemany("INSERT INTO META_DATA VALUES (?, ?)", values)
    replica = rank % cluster.width
    groups = {
        _group(replica): {
            "group_name": "pp", "group_rank": rank // cluster.width,
            "global_ranks": list(range(replica, cluster.world_size, cluster.width)),
        }
    }  # fmt: skip
    connection.execute("INSERT INTO META_DATA VALUES ('parallel_group_info', ?)", (json.dumps(groups),))
    if cluster.step_time:
        rows = [
            (n, a - LAUNCH_LEAD_NS - 50_000, b - LAUNCH_LEAD_NS + 50_000) for n, (a, b) in enumerate(bounds)
        ]
        connection.executemany("INSERT INTO STEP_TIME VALUES (?, ?, ?)", rows)
    host = rank // cluster.ranks_per_host
    connection.execute("INSERT INTO RANK_DEVICE_MAP VALUES (?, ?)", (rank, rank % cluster.ranks_per_host))
    connection.execute("INSERT INTO HOST_INFO VALUES (?, ?)", (f"uid-{host}", f"node{host}"))
    session = (bounds[0][0] - STEP_GAP_NS, bounds[-1][1] + STEP_GAP_NS)
    connection.execute("INSERT INTO SESSION_TIME_INFO VALUES (?, ?)", session)


def _group(replica: int) -> str:
    return f"group_name_{replica + 30}"


def _add_mark(connection: sqlite3.Connection, strings: _Strings, mark: _Mark) -> None:
    (count,) = connection.execute("SELECT count(*) FROM MSTX_EVENTS").fetchone()
    (highest,) = connection.execute("SELECT max(connectionId) FROM MSTX_EVENTS").fetchone()
    connection_id = (highest or FIRST_MARK_ID - 1) + 1
    host_ns = mark.start_ns - LAUNCH_LEAD_NS
    connection.execute(
        "INSERT INTO MSTX_EVENTS VALUES (?, ?, 2, ?, 4294967295, ?, ?, ?, 65535, ?)",
        (
            host_ns,
            mark.end_ns - LAUNCH_LEAD_NS,
            count,
            strings[mark.text],
            4711 << 32 | 1,
            4711 << 32 | 1,
            connection_id,
        ),
    )
    _add_task(connection, strings["MSTX"], connection_id, (mark.start_ns, mark.end_ns))


def _add_task(
    connection: sqlite3.Connection, task_type: int, connection_id: int, times: tuple[int, int]
) -> int:
    (last,) = connection.execute("SELECT max(rowid) FROM TASK").fetchone()
    task = 900_000_000 + (last or 0)
    connection.execute(
        "INSERT INTO TASK VALUES (?, ?, 0, ?, ?, 4711, ?, 4294967295, 9, ?, 4294967295)",
        (*times, connection_id, task, task_type, task % 65536),
    )
    return task


def _write_transfers(
    connection: sqlite3.Connection, strings: _Strings, cluster: Cluster, ends: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the ends of messages with the name of the operation that carries each."""
    batches = _batches(cluster, ends) if cluster.transfers == "batched" else [[end] for end in ends]
    named = []
    for number, batch in enumerate(batches, 1):
        rank, start_ns = batch[0]["rank"], min(end["start_ns"] for end in batch)
        group = _group(rank % cluster.width)
        hashed = f"{zlib.crc32(group.encode()) % 1000:03}"
        if cluster.transfers == "batched":
            kind = "batchSendRecv"
        else:
            kind = "send" if batch[0]["kind"].startswith("send") else "receive"
        name = f"hcom_{kind}__{hashed}_{number}_1"
        times = (start_ns, max(end["end_ns"] for end in batch))
        if cluster.transfers == "marks":
            fields = {"streamId": "9", "count": "4194304", "dataType": "bfp16", "groupName": group,
                    "opName": f"Hccl{kind.capitalize()}"}  # fmt: skip
            _add_mark(connection, strings, _Mark(json.dumps(fields), 0, *times))
        elif cluster.transfers != "none":
            tasks = [end["peer"] // cluster.width for end in batch]
            own = rank // cluster.width
            _add_op(
                connection, strings, (name, group, kind), (number, *times), [(own, peer) for peer in tasks]
            )
        named += [{**end, "name": name} for end in batch]
    return named if cluster.transfers != "none" else []


def _batches(cluster: Cluster, ends: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the ends that begin at the same time on a rank together, as Megatron's batch_isend_irecv issues them.

    Where the pipeline turns, one direction at a time, as MindSpeed's send_forward_recv_slave_forward does.
    """
    turns = find_schedule(cluster.schedule).placement == "v"
    batches: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for end in ends:
        is_backward = turns and end["kind"].endswith("backward")
        batches.setdefault((end["start_ns"], is_backward), []).append(end)
    return [batches[key] for key in sorted(batches)]


def _add_op(
    connection: sqlite3.Connection,
    strings: _Strings,
    words: tuple[str, str, str],
    numbers: tuple[int, int, int],
    links: list[tuple[int, int]],
) -> None:
    """Write one communication operation with its call and its tasks: two notifications and a copy per link.

    Source and target of a task are the local and the remote rank within the group, also where it receives.
    """
    name, group, kind = words
    number, start_ns, end_ns = numbers
    connection_id = 50_000_000 + number
    connection.execute(
        "INSERT INTO CANN_API VALUES (?, ?, 5500, 1, ?, ?)",
        (
            start_ns - LAUNCH_LEAD_NS,
            start_ns - LAUNCH_LEAD_NS + 9_000,
            connection_id,
            strings[f"hcom_{kind}"],
        ),
    )
    connection.execute(
        "INSERT INTO COMMUNICATION_OP VALUES (?, ?, ?, ?, ?, ?, 0, 0, 11, 0, 4194304, ?, 0)",
        (strings[name], start_ns, end_ns, connection_id, strings[group], number, strings[f"hcom_{kind}_"]),
    )
    third = (end_ns - start_ns) // 3
    for own, peer in links:
        for place, text in enumerate(("Notify_Wait", "Memcpy", "Notify_Record")):
            times = (start_ns + place * third, start_ns + (place + 1) * third)
            task = _add_task(connection, strings["COMMUNICATION"], connection_id, times)
            size = MESSAGE_BYTES if text == "Memcpy" else 0
            connection.execute(
                "INSERT INTO COMMUNICATION_TASK_INFO VALUES (?, ?, ?, 0, ?, 0, 0, ?, ?, 0, ?, 11, 0, ?, 1, 0)",
                (strings[name], task, strings[text], strings[group], own, peer, size, number),
            )


def _frame(rows: list[dict[str, Any]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema).sort("rank", "start_ns", maintain_order=True)
