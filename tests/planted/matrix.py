"""Plant causes in real trainings of five frameworks, and print what the reports name.

    python tests/planted/matrix.py                     all frameworks and plants, as a table
    python tests/planted/matrix.py DDP FSDP2           these frameworks
    python tests/planted/matrix.py --write             also to docs/accuracy-of-causes.md

What a reduction costs is how much longer the median step is than that of the same training without it, as the script
measures it; of the other plants the script knows the length. What a report states is the time of the cause in its table
`losses`: what the last pipeline lost, so that what was hidden behind other ranks is missing.
"""

from __future__ import annotations

import itertools
import json
import os
import re
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
PAGE = TESTS.parent / "docs" / "accuracy-of-causes.md"
BEGIN, END = "<!-- begin trainings -->", "<!-- end trainings -->"
PLANTS = ("reduction", "late", "loader", "pause")
FRAMEWORKS = {
    "DDP": ("torch_ranks.py", ["ddp"], None),
    "FSDP2": ("torch_ranks.py", ["fsdp"], None),
    "Megatron-core": ("megatron_ranks.py", [], ("megatron", *peers.MEGATRON)),
    "DeepSpeed": ("deepspeed_ranks.py", [], ("deepspeed", *peers.DEEPSPEED)),
    "ColossalAI": ("colossalai_ranks.py", [], ("colossalai", *peers.COLOSSALAI)),
}


class Wanted(NamedTuple):
    """What a report has to name: the causes that are right, and patterns of the cause and of the cause with its place.

    `what` is what was planted, in words.
    """

    causes: tuple[str, ...]
    cause: str
    place: str
    what: str


LATE = r"[Rr]ank {rank} (comes \S+ \S+|is) late|nothing recorded before the first forward of rank {rank}"
WANTED = {
    "reduction": Wanted(
        ("gradient_reduction",),
        r"\d (points )?gradient reduction",
        r"gradient reduction \((ranks of stage 1|rank ({ranks}))",
        "48 MB more gradients",
    ),
    "late": Wanted(("unattributed", "other_work"), LATE, LATE, "80 ms between backward and optimizer"),
    "loader": Wanted(
        ("data_loading",), r"\d (points )?data loading", r"data loading \(rank {rank}\)", "80 ms of loading"
    ),
    "pause": Wanted(
        ("jitter",),
        "during garbage collection",
        r"during garbage collection of generation 2, always on rank {rank}|on rank {rank} in step .* during garbage",
        "a garbage collection in a forward",
    ),
}


class Row(NamedTuple):
    """One training: what was planted where and what it cost, and what the report states of it."""

    framework: str
    plant: str
    place: str
    planted_ms: float
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
    cause, place = (
        pattern.format(rank=ranks[0], ranks="|".join(map(str, ranks)))
        for pattern in (wanted.cause, wanted.place)
    )
    return Row(
        framework,
        plant,
        f"stage {stage}" if replica is None else f"rank {ranks[0]}",
        planted_ms(framework, plant, facts[ranks[0]]),
        sum(lost.get(cause, 0) for cause in wanted.causes) / 1e6,
        re.search(cause, sentences) is not None,
        re.search(place, sentences) is not None,
        report.verdict.why,
    )


def planted_ms(framework: str, plant: str, facts: dict) -> float:
    """Return what was planted per step, or for a reduction, what it costs."""
    from planted.plants import LATE_S, LOADING_S  # noqa: PLC0415  # as above

    if plant == "reduction":
        return step_ms(framework, plant) - step_ms(framework, "none")
    if plant == "pause":
        return statistics.median(facts["pauses_ns"]) / 1e6
    return 1e3 * (LATE_S if plant == "late" else LOADING_S)


def table_of(rows: list[Row]) -> str:
    """Return rows as a Markdown table with the number of reports that name the cause and the place."""
    lines = [
        "| planted | training | planted ms | reported ms | cause named | with its place |",
        "| --- | --- | ---: | ---: | --- | --- |",
    ]
    lines += [
        f"| {WANTED[row.plant].what}, {row.place} | {row.framework} | {row.planted_ms:.0f} | {row.reported_ms:.0f} | "
        f"{'yes' if row.has_cause else 'no'} | {'yes' if row.has_place else 'no'} |"
        for row in rows
    ]
    causes, places = sum(row.has_cause for row in rows), sum(row.has_place for row in rows)
    return "\n".join(
        [*lines, "", f"The cause is named in {causes} of {len(rows)} reports, with its place in {places}."]
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
