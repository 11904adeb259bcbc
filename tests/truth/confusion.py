"""Print the table of planted and attributed causes: what each run lost to what, beside what stagescope reports.

    python tests/truth/confusion.py                planted cases, one seed
    python tests/truth/confusion.py --seeds 5      also how often each cause is attributed and named in 5 seeds
    python tests/truth/confusion.py --null 20      also 20 seeds of each null run: false claims
    python tests/truth/confusion.py --slight 30    also 30 seeds of the slight straggler: how often it is found
    python tests/truth/confusion.py --seeds 3 --null 15 --slight 30 --write
                                                   write these figures to docs/accuracy-of-causes.md instead

All times are milliseconds per step, over the iterations that the report measures. Percentages are of the *iteration*:
from the end of one step on all ranks to the end of the next, so it includes loading, reduction, optimizer and pauses.
The ledger of a report is its table `iterations`, as the mean over all ranks and iterations (`ledger`), and its table
`losses`, of the pipelines that ended last (`of the last`). A cause is attributed if the ledger has it within 1 % of the
iteration or 10 % of the truth.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import polars as pl

import stagescope
from truth.cases import NULLS, PLANTED, slight_straggler
from truth.engine import simulate
from truth.spans import timeline_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from truth.cases import Case, Truth
    from truth.plan import Plan

MS = 1e6
TOTALS = ("start_ns", "end_ns", "window_ns", "iteration_ns")
"""Columns of the ledger that are not parts of it."""

TOLERATED_POINTS, TOLERATED_RATIO = 0.01, 0.10
"""A cause is attributed correctly within this fraction of the iteration, or within this ratio of the truth."""


@dataclass(frozen=True)
class Reported:
    """What a report states: its ledger in ns per step by cause, of all ranks and of the last pipeline, and sentences.

    `steps` are those whose iterations it measures, by position. `changes` are the improvements without more memory, in
    the order of the verdict (fixes first), with their gain in ns.
    """

    ledger: dict[str, float]
    ledger_of_last: dict[str, float]
    first_sentence: str
    improvement: str
    findings: tuple[str, ...]
    changes: tuple[tuple[str, float], ...]
    steps: tuple[int, ...]

    @property
    def claims(self) -> int:
        return len(self.findings)


def report_on(plan: Plan) -> Reported:
    """Return what stagescope reports of the run of a plan."""
    report = stagescope.analyze(timeline_of(simulate(plan)))
    return Reported(
        ledger_of(report.iterations),
        losses_of(report),
        report.verdict.why,
        report.verdict.improvement,
        tuple(report.findings["evidence"]),
        tuple(report.improvements.filter(~pl.col("needs_more_memory")).select("change", "gain_ns").rows()),
        tuple(report.iterations["step"].unique().sort() - plan.first_step),
    )


def losses_of(report: stagescope.Report) -> dict[str, float]:
    """Return what the iterations of the last pipelines consist of, in ns per step by cause."""
    return {
        part.replace("_", " "): lost_ns for part, lost_ns in report.losses.select("part", "ns").iter_rows()
    }


def ledger_of(rows: pl.DataFrame) -> dict[str, float]:
    """Return the mean of rows of the table `iterations`, in ns by cause, named as in sentences, if it was recorded."""
    names = [name for name in rows.columns if name.endswith("_ns") and name not in TOTALS]
    means = rows.select(pl.col(names).mean()).row(0, named=True) if rows.height else {}
    return {_label(name): value for name, value in means.items() if value is not None}


def _label(column: str) -> str:
    return column.removesuffix("_ns").replace("_", " ").replace("data parallel", "data-parallel")


@dataclass(frozen=True)
class Row:
    """One planted cause, and what became of it."""

    case: Case
    truth: Truth
    reported: Reported

    @property
    def lost_ns(self) -> float:
        """What the cause costs in the iterations that the report measures."""
        return self.case.lost_ns(self.truth, self.reported.steps)

    @property
    def iteration_ns(self) -> float:
        """Their mean length."""
        return float(self.case.run.iterations_ns[list(self.reported.steps)].mean())

    @property
    def share(self) -> float:
        return self.lost_ns / self.iteration_ns

    @property
    def found_ns(self) -> tuple[float | None, float | None]:
        """What the ledger has for the cause, of all ranks and of the last pipeline; None where it has no such cause."""
        return self.reported.ledger.get(self.truth.cause), self.reported.ledger_of_last.get(self.truth.cause)

    @property
    def is_attributed(self) -> tuple[bool, bool]:
        """Whether each of the two ledgers has the cause within the tolerance."""
        tolerated = max(TOLERATED_POINTS * self.iteration_ns, TOLERATED_RATIO * abs(self.lost_ns))
        first, second = (
            found is not None and abs(found - self.lost_ns) <= tolerated for found in self.found_ns
        )
        return first, second

    @property
    def cause_is_named(self) -> bool:
        """Whether the first sentence names the cause."""
        return self.truth.cause in self.reported.first_sentence.lower()

    @property
    def is_named(self) -> bool:
        """Whether the first sentence names the cause and, if one is planted, the culprit."""
        return self.cause_is_named and mentions(self.reported.first_sentence, self.truth.culprit)

    @property
    def culprit_is_found(self) -> bool:
        """Whether any sentence names the culprit."""
        texts = (self.reported.first_sentence, *self.reported.findings)
        return any(mentions(text, self.truth.culprit) for text in texts)


def mentions(text: str, culprit: str) -> bool:
    """Return whether a text has one of the alternatives of a culprit, as whole words."""
    return (
        any(re.search(rf"(?i)\b{re.escape(each)}\b", text) for each in culprit.split(" / "))
        if culprit
        else True
    )


def rows_of(cases: list[Case]) -> list[Row]:
    """Return one row per planted cause of the cases."""
    return [
        Row(case, truth, reported)
        for case in cases
        for reported in [report_on(case.plan)]
        for truth in case.truths
    ]


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield the table of truths beside what the ledger has for the planted cause and what is named."""
    columns = (
        "planted",
        "iteration ms",
        "cause",
        "culprit",
        "truth ms",
        "truth %",
        "ledger ms",
        "of the last ms",
    )
    yield f"| {' | '.join(columns)} | attributed | of the last | named | culprit in any sentence |"
    yield "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- | --- | --- | --- |"
    for row in rows:
        ledgers = ["no such cause" if found is None else f"{found / MS:.1f}" for found in row.found_ns]
        verdicts = [_yes(found=found) for found in (*row.is_attributed, row.is_named)]
        found = _yes(found=row.culprit_is_found) if row.truth.culprit else ""
        yield (
            f"| {row.case.name} | {row.iteration_ns / MS:.1f} | {row.truth.cause} | {row.truth.culprit} "
            f"| {row.lost_ns / MS:.1f} | {100 * row.share:.1f} | {' | '.join([*ledgers, *verdicts, found])} |"
        )
    counts = [
        sum(values) for values in zip(*((*row.is_attributed, row.is_named) for row in rows), strict=True)
    ]
    yield ""
    yield f"Of {len(rows)} causes, {counts[0]} are attributed in the mean over all ranks, {counts[1]} in the last"
    yield f"pipeline, and {counts[2]} are named in the first sentence."


def matrix(rows: list[Row]) -> Iterator[str]:
    """Yield the matrix planted x attributed: what the ledger of each run has more than that of its twin."""
    twins = [report_on(row.truth.without) for row in rows]
    causes = list(
        dict.fromkeys(cause for each in (*twins, *(row.reported for row in rows)) for cause in each.ledger)
    )
    yield f"| planted | truth ms | {' | '.join(causes)} | in no cause |"
    yield "| --- | ---: |" + " ---: |" * (len(causes) + 1)
    for row, twin in zip(rows, twins, strict=True):
        more = [(row.reported.ledger.get(cause) or 0) - (twin.ledger.get(cause) or 0) for cause in causes]
        cells = " | ".join(f"{value / MS:.1f}" for value in [*more, row.lost_ns - sum(more)])
        yield f"| {row.case.name}: {row.truth.cause} | {row.lost_ns / MS:.1f} | {cells} |"


def improvements(rows: list[Row]) -> Iterator[str]:
    """Yield what is proposed first and what is proposed about the culprit, each with its predicted gain."""
    yield "| planted | truth ms | first improvement | gain ms | first about the culprit | gain ms |"
    yield "| --- | ---: | --- | ---: | --- | ---: |"
    for row in rows:
        changes, culprit = row.reported.changes, row.truth.culprit
        about = [each for each in changes if culprit and mentions(each[0], culprit)]
        cells = [_change(found) for found in (changes[:1], about[:1])]
        yield f"| {row.case.name}: {row.truth.cause} | {row.lost_ns / MS:.1f} | {cells[0]} | {cells[1]} |"
    redesigns = sum(
        row.reported.changes[:1] != () and "schedule" in row.reported.changes[0][0] for row in rows
    )
    yield f"\nThe first improvement is another schedule in {redesigns} of {len(rows)} rows."


def first_improvements(seeds: int) -> Iterator[str]:
    """Yield what is proposed first in every seed, with the range of its predicted gain beside that of the truth."""
    yield "| planted: cause | truth ms | first improvement | gain ms |"
    yield "| --- | ---: | --- | ---: |"
    for build in PLANTED:
        runs = [rows_of([build(seed)]) for seed in range(seeds)]
        for rows in zip(*runs, strict=True):
            first = [row.reported.changes[0] if row.reported.changes else ("none", 0.0) for row in rows]
            names = list(dict.fromkeys(name for name, _ in first))
            cells = [
                _range([row.lost_ns for row in rows]),
                " / ".join(names),
                _range([gain for _, gain in first]),
            ]
            yield f"| {rows[0].case.name}: {rows[0].truth.cause} | {' | '.join(cells)} |"


def _change(found: tuple | list) -> str:
    return f"{found[0][0]} | {found[0][1] / MS:.1f}" if found else " | "


def repeated(seeds: int) -> Iterator[str]:
    """Yield per planted cause in how many seeds it is attributed and named, with the range of truth and ledger."""
    columns = ("planted", "truth ms", "ledger ms", "of the last ms", "attributed", "of the last", "named")
    yield f"| {' | '.join(columns)} | culprit in any sentence |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for build in PLANTED:
        runs = [rows_of([build(seed)]) for seed in range(seeds)]
        for rows in zip(*runs, strict=True):
            verdicts = [(*row.is_attributed, row.is_named, row.culprit_is_found) for row in rows]
            counts = [f"{sum(values)} of {seeds}" for values in zip(*verdicts, strict=True)]
            counts[-1] = counts[-1] if rows[0].truth.culprit else ""
            times = [_range([row.lost_ns for row in rows])]
            times += [_range(found) for found in zip(*(row.found_ns for row in rows), strict=True)]
            yield f"| {rows[0].case.name}: {rows[0].truth.cause} | {' | '.join([*times, *counts])} |"


def planted(seeds: int) -> Iterator[str]:
    """Yield the table of the document: per planted cause what it costs, what is reported, and what is named."""
    columns = ("planted: cause", "truth ms", "reported ms", "within tolerance")
    named = ("cause in the first sentence", "culprit in the first sentence", "culprit in any")
    yield f"| {' | '.join([*columns, *named])} |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    verdicts = []
    for build in PLANTED:
        runs = [rows_of([build(seed)]) for seed in range(seeds)]
        for rows in zip(*runs, strict=True):
            verdicts += rows
            texts = [_range([row.lost_ns for row in rows]), _range([row.found_ns[1] for row in rows])]
            texts += _counts(rows)
            yield f"| {rows[0].case.name}: {rows[0].truth.cause} | {' | '.join(texts)} |"
    fits = sum(row.is_attributed[1] for row in verdicts)
    yield ""
    yield (
        f"Of {len(verdicts)} runs, {fits} have the cause within the tolerance, "
        f"{sum(row.cause_is_named for row in verdicts)} name it in the first sentence, and\n"
        f"{sum(row.is_named for row in verdicts)} do so with its culprit, where it has one."
    )


def _counts(rows: Sequence[Row]) -> list[str]:
    """Return in how many rows the cause is attributed and named, and its culprit, which not every cause has."""
    about_cause = [[row.is_attributed[1] for row in rows], [row.cause_is_named for row in rows]]
    about_culprit = [[row.is_named for row in rows], [row.culprit_is_found for row in rows]]
    if not rows[0].truth.culprit:
        about_culprit = []
    counts = [f"{sum(values)} of {len(rows)}" for values in (*about_cause, *about_culprit)]
    return [*counts, *["-"] * (4 - len(counts))]


def write(options: argparse.Namespace) -> None:
    """Write the figures into the sections of the document that are marked as generated."""
    document = Path(__file__).resolve().parents[2] / "docs" / "accuracy-of-causes.md"
    text = document.read_text()
    parts = {
        "planted": planted(options.seeds),
        "nothing": nulls(options.null),
        "smallest": [slight(options.slight)],
    }
    for name, lines in parts.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, *lines, "", end.strip() + rest.partition(end)[2]])
    document.write_text(text)


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known) / MS:.1f} to {max(known) / MS:.1f}" if known else "no such cause"


def details(rows: list[Row]) -> Iterator[str]:
    """Yield per case the sentences of the verdict, and how much idle time the planted cause adds to each rank."""
    for row in rows:
        yield f"\n### {row.case.name}: {row.truth.cause}\n"
        yield f"* Reported: {row.reported.first_sentence}"
        yield f"* {row.reported.improvement}"
        yield f"* Findings: {row.reported.claims}"
        yield from (f"  * {sentence}" for sentence in row.reported.findings)
        known = {cause: value for cause, value in row.reported.ledger.items() if value is not None}
        ledger = (f"{cause} {value / MS:.1f}" for cause, value in known.items())
        yield f"* Ledger, ms: {', '.join(ledger)}"
        idle = row.case.caused_idle_ns(row.truth).T.ravel() / MS
        yield f"* Truth: idle ms added to each rank, from 0: {', '.join(f'{value:.1f}' for value in idle)}"
        if row.case.plan.network.blocking:
            blocked = row.case.run.blocked_ns().T.ravel() / MS
            yield f"* Truth: ms blocked on sends, from rank 0: {', '.join(f'{value:.1f}' for value in blocked)}"


def nulls(seeds: int) -> Iterator[str]:
    """Yield how many claims are made where nothing is planted."""
    yield "| nothing planted | runs | runs with a claim | claims | first claim |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for null in NULLS:
        reports = [report_on(null.plan(seed)) for seed in range(seeds)]
        wrong = [report for report in reports if report.claims]
        first = next((text for report in wrong for text in report.findings), "")
        claims = sum(report.claims for report in wrong)
        yield f"| {null.name} | {seeds} | {len(wrong)} | {claims} | {first} |"


def slight(seeds: int) -> str:
    """Return how often the slight straggler is found, and how many claims are about nothing that is planted."""
    rows = rows_of([slight_straggler(seed) for seed in range(seeds)])
    found = sum(row.culprit_is_found for row in rows)
    wrong = sum(not _is_about(text, row) for row in rows for text in row.reported.findings)
    return f"One rank 3 % slower, noise 3 %: found in {found} of {seeds} runs; {wrong} claims about something else."


def _is_about(text: str, row: Row) -> bool:
    """Return whether a claim is about the planted rank, or about its whole pipeline, which it delays."""
    ranks, culprit = row.case.plan.shape.ranks, row.truth.culprit
    first = int(culprit.split()[1]) // ranks * ranks
    return mentions(text, f"{culprit} / pipeline of rank {first}")


def _yes(*, found: bool) -> str:
    return "yes" if found else "no"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--null", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--slight", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy-of-causes.md")
    options = parser.parse_args()
    if options.write:
        write(options)
        return
    rows = rows_of([build(options.seed) for build in PLANTED])
    print("# Planted and attributed causes\n", *__doc__.split("\n\n")[-1:], sep="\n")
    print("## Truth and ledger\n", *summary(rows), sep="\n")
    print("\n## Matrix: ledger of the run minus ledger of the same run without the cause, ms per step\n")
    print(*matrix(rows), sep="\n")
    print("\n## Improvements\n", *improvements(rows), sep="\n")
    if options.seeds > 1:
        print(f"\n## {options.seeds} seeds\n", *repeated(options.seeds), sep="\n")
        print("\n## First improvements\n", *first_improvements(options.seeds), sep="\n")
    print("\n## Verdicts", *details(rows), sep="\n")
    if options.null:
        print("\n## Null runs\n", *nulls(options.null), sep="\n")
    if options.slight:
        print("\n## Power\n", slight(options.slight), sep="\n")


if __name__ == "__main__":
    main()
