"""Plant causes in real trainings of five frameworks, and print what the reports name.

    python tests/planted/matrix.py                     all frameworks and plants, as a table
    python tests/planted/matrix.py DDP FSDP2           these frameworks
    python tests/planted/matrix.py --write             also to docs/accuracy-of-recordings.md

The cost of a plant is how much longer the median step is than that of the same training without a plant, as its
script measures it. What a report states is the time of the cause in its table `losses`.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peers
import stagescope
from process_groups import once
from scratch import scratch_directory
from stagescope.record.launch import recording_environment
from trainings import TESTS, run_ranks

FOLDER = TESTS / "planted"
PAGE = TESTS.parent / "docs" / "accuracy-of-recordings.md"
BEGIN, END = "<!-- begin planted -->", "<!-- end planted -->"
PLANTS = ("reduction", "late", "loader", "pause")
FRAMEWORKS = {
    "DDP": ("torch_ranks.py", ["ddp"], None),
    "FSDP2": ("torch_ranks.py", ["fsdp"], None),
    "Megatron-core": ("megatron_ranks.py", [], ("megatron", *peers.MEGATRON)),
    "DeepSpeed": ("deepspeed_ranks.py", [], ("deepspeed", *peers.DEEPSPEED)),
    "ColossalAI": ("colossalai_ranks.py", [], ("colossalai", *peers.COLOSSALAI)),
}


class Wanted(NamedTuple):
    """What a report has to name: the causes that are right, a text in its sentences, and in words what was planted."""

    causes: tuple[str, ...]
    text: str
    what: str


WANTED = {
    "reduction": Wanted(("gradient_reduction",), "gradient reduction", "stage 1 has 48 MB of gradients"),
    "late": Wanted(("unattributed", "other_work", "data_parallel_wait"), "", "80 ms after every step"),
    "loader": Wanted(("data_loading",), "data loading", "80 ms of loading per step"),
    "pause": Wanted(("jitter",), "garbage collection", "a garbage collection in a forward"),
}


class Row(NamedTuple):
    """One training: what was planted where and what it cost, and what the report states of it."""

    framework: str
    plant: str
    place: str
    truth_ms: float
    reported_ms: float
    has_cause: bool
    has_place: bool
    sentence: str


@once
def train(framework: str, plant: str, *, recorded: bool = True) -> tuple[Path, dict[int, dict]]:
    """Return the recording of a training, and what each rank printed."""
    script, arguments, packages = FRAMEWORKS[framework]
    folder = peers.peer_packages(*packages) if packages else ""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    directory = scratch_directory("training")
    environment = {
        **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(directory / "extensions"), "PLANT": plant,
    }  # fmt: skip
    if recorded:
        environment = recording_environment(directory, steps=None, run=plant, inherited=environment)
    done = run_ranks([str(FOLDER / script), *arguments], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    return directory, {line["rank"]: line for line in lines}


def step_ms(framework: str, plant: str) -> float:
    """Return the median step of a training, as its script measured it."""
    starts = [facts["starts_ns"] for facts in train(framework, plant)[1].values()]
    begins = [min(of_step) for of_step in zip(*starts, strict=True)][1:]  # the first step makes connections
    return statistics.median(b - a for a, b in itertools.pairwise(begins)) / 1e6


def row_of(framework: str, plant: str) -> Row:
    """Return what the report of a training states."""
    from planted.plants import PLACES  # noqa: PLC0415  # imports torch, which takes long

    directory, facts = train(framework, plant)
    stage, replica = PLACES[plant]
    ranks = [
        rank for rank, one in facts.items() if one["stage"] == stage and replica in (None, one["replica"])
    ]
    report = stagescope.analyze(stagescope.read(directory))
    lost = dict(report.losses.select("part", "ns").iter_rows())
    sentences = " ".join([report.verdict.why, *report.findings["evidence"]])
    wanted = WANTED[plant]
    names = [f"rank {rank}" for rank in ranks] + [f"stage {stage}"] * (replica is None)
    return Row(
        framework,
        plant,
        f"stage {stage}" if replica is None else f"rank {ranks[0]}",
        step_ms(framework, plant) - step_ms(framework, "none"),
        sum(lost.get(cause, 0) for cause in wanted.causes) / 1e6,
        wanted.text in sentences,
        any(name in sentences for name in names),
        report.verdict.why,
    )


def table_of(rows: list[Row]) -> str:
    """Return rows as a Markdown table with the number of reports that name the cause and the place."""
    lines = [
        "| planted | training | cost ms | reported ms | cause named | place named |",
        "| --- | --- | ---: | ---: | --- | --- |",
    ]
    lines += [
        f"| {WANTED[row.plant].what}, {row.place} | {row.framework} | {row.truth_ms:.0f} | {row.reported_ms:.0f} | "
        f"{'yes' if row.has_cause else 'no'} | {'yes' if row.has_place else 'no'} |"
        for row in rows
    ]
    causes, places = sum(row.has_cause for row in rows), sum(row.has_place for row in rows)
    return "\n".join(
        [*lines, "", f"The cause is named in {causes} of {len(rows)} reports, the place in {places}."]
    )


def main() -> None:
    arguments = sys.argv[1:]
    frameworks = [name for name in arguments if name in FRAMEWORKS] or list(FRAMEWORKS)
    rows = [row_of(framework, plant) for plant in PLANTS for framework in frameworks]
    print(table_of(rows))
    for row in rows:
        print(f"\n{row.framework}, {row.plant}: {row.sentence}")
    if "--write" in arguments:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table_of(rows)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
