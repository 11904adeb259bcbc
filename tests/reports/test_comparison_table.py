"""A comparison in words and tables."""

import re

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.comparison import compare_runs
from stagescope.model import empty_timeline
from stagescope.reports.comparison_sentences import comparison_sentences
from stagescope.reports.comparison_table import comparison_tables

SHAPE = Shape(pipelines=1)


def slower():
    after = random_times(SHAPE, 2)
    after.action_ns[1, :, :, 2] *= 1.1
    return compare_runs(run(random_times(SHAPE, 1)), run(after))


def test_the_sentences_state_how_much_and_where():
    iteration, window, where = comparison_sentences(slower())
    assert iteration.startswith("The iteration got 3.")
    assert "% longer: 339.2 ms before, 350.0 ms after (95 % CI +" in iteration
    assert iteration.endswith(", n = 20 and 20 steps).")
    assert window.startswith("The pipeline window got 3.")
    assert window.endswith("% longer: 334.4 ms before, 345.3 ms after.")
    assert where.startswith("Most of it: stage imbalance, +5.")
    assert "; of all places, backward of stage 2 changed most, +15." in where


def test_noise_is_not_claimed():
    quiet = Shape(pipelines=1, noise=0.005)
    found = compare_runs(run(random_times(quiet, 1)), run(random_times(quiet, 2)))
    iteration, window = comparison_sentences(found)
    assert iteration.startswith("The iteration did not change: a difference of 0.5 % is excluded; ")
    assert window.startswith("The pipeline window did not change beyond noise")


def test_what_could_have_been_missed_is_stated():
    shape = Shape(pipelines=1, steps=6, step_noise=0.05)
    first, *_ = comparison_sentences(compare_runs(run(random_times(shape, 1)), run(random_times(shape, 2))))
    assert re.match(r"No difference of the iteration was found, but one of up to \d+\.\d % could", first)


def test_changes_of_the_run_come_first():
    other = random_times(Shape(pipelines=1, microbatches=12), 2)
    first, second, *_ = comparison_sentences(compare_runs(run(random_times(SHAPE, 1)), run(other)))
    assert first == "The number of micro-batches per step changed from 8 to 12."
    assert second.startswith("The time per micro-batch got ")


def test_states_too_few_steps_and_nothing_in_common():
    one = run(random_times(Shape(pipelines=1, steps=1)))
    assert comparison_sentences(compare_runs(one, one))[0].startswith("Too few steps")
    none = compare_runs(empty_timeline(), empty_timeline())
    assert comparison_sentences(none) == [
        "The runs have nothing in common that could be compared.",
        "The bubble of both runs is unknown: no step with a forward or backward action was recorded.",
    ]
    assert "0 further comparisons" in comparison_tables(none)


def test_the_tables_have_all_parts_and_the_claimed_subjects():
    lines = comparison_tables(slower()).splitlines()
    assert lines[0].split()[:4] == ["mean", "per", "iteration", "before"]
    assert lines[1].startswith("iteration")
    assert lines[2].startswith("pipeline window")
    assert sum("(noise)" in line or "(uncertain)" in line for line in lines[1:9]) >= 4
    blank = lines.index("")
    assert [line[:19].strip() for line in lines[blank + 2 : blank + 4]] == [
        "backward of stage 2",
        "actions of rank 2",
    ]
    assert lines[-1].endswith("further comparisons of actions, ranks and links are not claimed.")


def test_every_line_of_a_markdown_table_has_the_same_number_of_cells():
    lines = [line for line in comparison_tables(slower(), markdown=True).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {7}
    assert lines[1].startswith("| --- | ---: |")
