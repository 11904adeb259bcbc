import io
import re
from itertools import pairwise
from textwrap import dedent

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from drawing import timeline_from_text
from machines import on_machines
from stagescope.api import simulate
from stagescope.exporters.pictures.step_chart import UNALIGNED
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform
from stagescope.reports.sampled import MOST_RANKS, evenly_chosen
from stagescope.reports.terminal import BRIGHT, DIVIDER, SIXTEEN, draw_step
from stagescope.schedules import Costs, order
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import BY_NAME, KINDS
from stagescope.vocabulary.palette import SWATCHES, TERMINAL_COLORS
from synthetic import Shape, pipeline_timeline

TWO_CELLS_PER_SLOT = 39  # 17 slots, and 5 characters of label
DRAWN = """
    F0 F1 F2 F3 .  .  B0 -  .  B1 -  .  B2 -  .  B3 -
    .  F0 F1 F2 B0 -  F3 B1 -  B2 -  B3 -  .  .  .  .
"""
SPAN = {"lane": "compute", "kind": "forward", "step": 0, "stage": 0, "microbatch": 0}


def chart(timeline: Timeline, **options: object) -> str:
    return "\n" + draw_step(timeline, **options).plain + "\n"


def picture(text: str) -> str:
    return dedent(text)


def spans(*rows: dict[str, object]) -> Timeline:
    frame = pl.DataFrame([{"rank": 0, **SPAN, **row} for row in rows], infer_schema_length=None)
    return empty_timeline().with_spans(conform(frame, SPANS))


def row(text: Text, number: int = 1) -> Text:
    """Return one line of a chart with its styles; line 0 is the title."""
    return text.split("\n")[number]


def color_at(line: Text, place: int) -> str | None:
    """Return what fills most of a character: the background, or the ink of a full block."""
    style = next((span.style for span in line.spans if span.start <= place < span.end), None)
    color = style and (style.color if line.plain[place] == "█" else style.bgcolor)
    return color.get_truecolor().hex if color else None


def test_without_color_every_span_begins_with_its_letter() -> None:
    drawn = chart(timeline_from_text(DRAWN), width=TWO_CELLS_PER_SLOT, color=False)
    assert drawn == picture("""
        Pipeline · 2 ranks · 4 micro-batches ·…
           0 F0F1F2F3    B0──  B1──  B2──  B3──
           1   F0F1F2B0──F3B1──B2──B3──
        rank └───────────────────┴─────────────
             0 µs               10
        F forward  B backward
        """)


def test_ascii_only_draws_the_same_chart() -> None:
    drawn = chart(timeline_from_text(DRAWN), width=TWO_CELLS_PER_SLOT, color=False, ascii_only=True)
    assert drawn == picture("""
        Pipeline, 2 ranks, 4 micro-batches, ...
           0 F0F1F2F3    B0--  B1--  B2--  B3--
           1   F0F1F2B0--F3B1--B2--B3--
        rank +-------------------+-------------
             0 us               10
        F forward  B backward
        """)
    assert drawn.isascii()


def test_with_color_spans_are_filled_and_numbered() -> None:
    drawn = chart(timeline_from_text(DRAWN), width=TWO_CELLS_PER_SLOT)
    assert drawn.splitlines()[2:4] == [
        "   0 0█1█2█3█    █0██  █1██  █2██  █3██",
        "   1   0█1█2██0██3██1███2███3██",
    ]


def test_a_boundary_within_a_character_is_visible() -> None:
    timeline = spans({"start_ns": 0, "end_ns": 2_500}, {"rank": 1, "start_ns": 3_500, "end_ns": 27_000})
    drawn = draw_step(timeline, width=32).plain.splitlines()
    assert drawn[1] == "   0 0█▌"
    assert drawn[2].startswith("   1    ▐██")


def test_colors_are_those_of_the_kinds() -> None:
    line = row(draw_step(timeline_from_text(DRAWN), width=TWO_CELLS_PER_SLOT))
    assert color_at(line, 5) == color_at(line, 6) == SWATCHES["forward"].color
    assert color_at(line, 17) == color_at(line, 20) == SWATCHES["backward"].color
    assert color_at(line, 14) is None


def test_adjacent_actions_of_one_kind_differ_in_shade() -> None:
    line = row(draw_step(timeline_from_text(DRAWN), width=TWO_CELLS_PER_SLOT))
    assert color_at(line, 6) != color_at(line, 8)


def test_chunks_differ_in_shade() -> None:
    timeline = spans(
        {"chunk": 0, "start_ns": 0, "end_ns": 5_000},
        {"chunk": 1, "start_ns": 5_000, "end_ns": 10_000},
    )
    text = draw_step(timeline)
    assert color_at(row(text), 6) != color_at(row(text), 60)
    assert "dark to light: chunks 0 to 1" in text.plain


def test_chunks_are_separated_by_lines_instead_of_shades() -> None:
    rows = [{"microbatch": m, "start_ns": 5_000 * m, "end_ns": 5_000 * (m + 1)} for m in range(3)]
    text = draw_step(spans(*rows, {"rank": 1, "chunk": 1, "stage": 1, "start_ns": 0, "end_ns": 15_000}))
    line = row(text)
    assert color_at(line, 10) == color_at(line, 35)
    assert line.plain.count(DIVIDER) == 3


def test_kinds_differ_in_sixteen_colors() -> None:
    kinds = ("forward", "backward", "backward_input", "backward_weight", "optimizer", "loss", "grad_reduce")
    assert len({TERMINAL_COLORS[kind] % BRIGHT for kind in kinds}) == len(kinds)
    rows = [
        {
            "kind": kind,
            "microbatch": m,
            "start_ns": 2_000 * (2 * place + m),
            "end_ns": 2_000 * (2 * place + m + 1),
        }
        for place, kind in enumerate(kinds[:4])
        for m in (0, 1)
    ]
    text = draw_step(spans(*rows), width=80, color=SIXTEEN)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(text.split("\n")[1])
    found = set(re.findall(r"\x1b\[(?:\d+;)?(4[0-7]|10[0-7])m", console.file.getvalue()))
    assert len(found) == 8  # one of a kind for even, one for odd micro-batches


def test_without_color_there_is_no_style() -> None:
    text = draw_step(timeline_from_text(DRAWN), color=False)
    assert (text.spans, text.style) == ([], "")


def test_waits_are_dots_and_other_idle_time_is_blank() -> None:
    timeline = pipeline_timeline(Shape(ranks=2, microbatches=2, steps=1))
    assert chart(timeline, width=45, color=False) == picture("""
        Pipeline · 2 ranks · 2 micro-batches · step …
           0 F0──F1──··········B0──────····B1──────O─
           1 ·····F0──B0──────F1──B1──────O─
        rank └───────────────────┴───────────────────
             0 ms                5
        F forward  B backward  O optimizer
        · waiting for a transfer
        """)


def test_overlapping_actions_are_on_separate_lines() -> None:
    timeline = spans(
        {"start_ns": 0, "end_ns": 5_000},
        {"kind": "backward", "microbatch": 1, "pair": 1, "start_ns": 5_000, "end_ns": 15_000},
        {"microbatch": 2, "pair": 1, "start_ns": 5_000, "end_ns": 15_000},
        {"kind": "backward", "microbatch": 2, "start_ns": 15_000, "end_ns": 27_000},
    )
    lines = draw_step(timeline, width=32, color=False).plain.splitlines()
    assert lines[1:3] == [
        "   0 F0───F2────────B2──────────",
        "          B1────────",
    ]


def test_a_span_concurrent_with_an_action_is_below_it() -> None:
    timeline = spans(
        {"start_ns": 0, "end_ns": 27_000},
        {"kind": "grad_reduce", "lane": "comm", "microbatch": None, "start_ns": 9_000, "end_ns": 18_000},
    )
    assert draw_step(timeline, width=32, color=False).plain.splitlines()[1:3] == [
        "   0 F0─────────────────────────",
        "              G────────",
    ]


def test_a_span_that_mostly_follows_an_action_is_on_the_same_line() -> None:
    timeline = spans(
        {"start_ns": 0, "end_ns": 12_000},
        {"kind": "grad_reduce", "lane": "comm", "microbatch": None, "start_ns": 10_000, "end_ns": 27_000},
    )
    assert draw_step(timeline, width=32, color=False).plain.splitlines()[1:3] == [
        "   0 F0──────────G──────────────",
        "rank └─────────┴─────────┴──────",
    ]


def test_draws_evenly_spaced_ranks_of_many_and_counts_the_others() -> None:
    lines = draw_step(timeline_from_text("F0 B0\n" * 100), color=False).plain.splitlines()
    ranks = [int(line.split()[0]) for line in lines[1 : MOST_RANKS + 1]]
    assert (ranks[0], ranks[-1], len(set(ranks))) == (0, 99, MOST_RANKS)
    assert {b - a for a, b in pairwise(ranks)} == {2, 3}
    assert "60 ranks not shown" in lines


def test_draws_few_of_many_simulated_ranks_and_all_of_some() -> None:
    for count, shown in ((512, 16), (40, 40)):
        step = simulate(order("1f1b", ranks=count, microbatches=4), Costs(forward=1000))
        text = draw_step(step.timeline, color=False).plain
        ranks = [int(line.split()[0]) for line in text.splitlines()[1 : shown + 1]]
        assert (ranks[0], ranks[-1], len(set(ranks))) == (0, count - 1, shown)
        assert (f"{count - shown} ranks not shown" in text) is (count > shown)


def test_counts_spans_narrower_than_a_character() -> None:
    drawn = draw_step(timeline_from_text(" ".join(f"F{m}" for m in range(300))), color=False).plain
    assert "300 spans narrower than a character" in drawn


def test_counts_overlapping_actions_beyond_the_line_limit() -> None:
    rows = [{"microbatch": m, "start_ns": 0, "end_ns": 1_000} for m in range(5)]
    assert "2 overlapping spans not shown" in draw_step(spans(*rows)).plain


def test_a_timeline_without_actions_is_labelled() -> None:
    assert "no actions recorded" in draw_step(empty_timeline()).plain


def test_a_missing_step_is_an_error() -> None:
    with pytest.raises(InputError, match="step 3 was not recorded"):
        draw_step(timeline_from_text(DRAWN), 3)


def test_control_characters_in_a_schedule_name_are_replaced() -> None:
    timeline = timeline_from_text(DRAWN)
    ranks = timeline.ranks.with_columns(pl.lit("\x1b[2J\n混合パイプライン" * 9).alias("schedule"))
    hostile = Timeline(timeline.spans, ranks, timeline.steps, timeline.clocks, timeline.diagnostics)
    title = draw_step(hostile, width=40).plain.splitlines()[0]
    assert "\x1b" not in title
    assert cell_len(title) <= 40


def test_evenly_spaced_indexes_include_both_ends() -> None:
    assert evenly_chosen(3, 40) == [0, 1, 2]
    assert evenly_chosen(9, 3) == [0, 4, 8]
    assert evenly_chosen(0, 40) == []


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Anything a recording may hold: up to 4-digit ranks, overlaps, points, every kind."""
    ranks = draw(st.lists(st.integers(0, 9_999), min_size=1, max_size=4, unique=True))
    rows = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "rank": st.sampled_from(ranks),
                    "kind": st.sampled_from([kind.name for kind in KINDS]),
                    "stage": st.none() | st.integers(0, 3),
                    "chunk": st.none() | st.integers(0, 3),
                    "microbatch": st.none() | st.integers(0, 2_000),
                    "start_ns": st.integers(0, 100_000),
                    "duration_ns": st.integers(0, 40_000),
                }
            ),
            max_size=25,
        )
    )
    for each in rows:
        waits = (each["start_ns"], each["start_ns"] + each["duration_ns"] // 2)
        each.update(
            lane=BY_NAME[each["kind"]].lane, step=0, end_ns=each["start_ns"] + each.pop("duration_ns")
        )
        each.update(zip(("wait_start_ns", "wait_end_ns"), waits, strict=True))
    timeline = empty_timeline()
    table = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS) if rows else timeline.spans
    known = conform(pl.DataFrame({"rank": ranks}), RANKS)
    return Timeline(table, known, timeline.steps, timeline.clocks, timeline.diagnostics)


@settings(max_examples=40, deadline=None)
@given(timeline=timelines(), width=st.integers(32, 100), ascii_only=st.booleans(), color=st.booleans())
def test_no_line_exceeds_the_width(*, timeline: Timeline, width: int, ascii_only: bool, color: bool) -> None:
    text = draw_step(timeline, width=width, ascii_only=ascii_only, color=color)
    lines = text.plain.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert not ascii_only or text.plain.isascii()
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(text)
    assert console.file.getvalue().count("\n") == len(lines)


@settings(max_examples=40, deadline=None)
@given(timelines())
def test_every_letter_belongs_to_a_kind_that_ran(timeline: Timeline) -> None:
    lines = draw_step(timeline, color=False).plain.split("\n")
    present = {BY_NAME[kind].letter for kind in timeline.spans["kind"].unique()}
    rows = [line[5:] for line in lines[1:] if line[:5].strip().isdigit()]
    assert {character for line in rows for character in line if character.isalpha()} <= present


def test_unaligned_machines_are_drawn_in_titled_sections() -> None:
    timeline = timeline_from_text("F0 B0\nF0 B0\nF0 B0")
    timeline = on_machines(
        timeline, {0: "node-a", 1: "node-b", 2: "node-a"}, {"node-a": (0, 0), "node-b": None}
    )
    lines = chart(timeline, width=90, ascii_only=True).strip().splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["--", "0", "2", "--", "1"]
    assert lines[1] == f"-- node-a: {UNALIGNED} ".ljust(90, "-")
    assert lines[4] == f"-- node-b: {UNALIGNED} ".ljust(90, "-")
    assert "bubble" not in lines[0]
    assert lines[-1].startswith("0 is the start of the step on each clock")
    assert all(len(line) <= 40 for line in chart(timeline, width=40).splitlines())


def test_a_section_without_a_visible_row_is_omitted() -> None:
    count = 3 * MOST_RANKS
    machines = dict.fromkeys(range(count), "node") | {3: "hidden", 5: "last"}
    timeline = timeline_from_text("\n".join(["F0 B0"] * count))
    drawn = chart(on_machines(timeline, machines, {"node": (0, 0)}), width=100)
    assert f"node: {UNALIGNED}" in drawn
    assert f"last: {UNALIGNED}" in drawn
    assert "hidden" not in drawn
