"""A comparison in words and tables."""

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.comparison import compare_runs
from stagescope.model import empty_timeline
from stagescope.reports.comparison_table import comparison_sentences, comparison_tables

SHAPE = Shape(pipelines=1)


def slower():
    after = random_times(SHAPE, 2)
    after.action_ns[1, :, :, 2] *= 1.1
    return compare_runs(run(random_times(SHAPE, 1)), run(after))


def test_the_sentences_state_how_much_and_where():
    step, where = comparison_sentences(slower())
    assert step.startswith("The step got 3.")
    assert "% longer: 334.4 ms before, 345.3 ms after (95 % CI +" in step
    assert step.endswith(", n = 20 and 20 steps).")
    assert where.startswith("Most of it: backward of stage 2, +15.")


def test_noise_is_not_claimed():
    (sentence,) = comparison_sentences(compare_runs(run(random_times(SHAPE, 1)), run(random_times(SHAPE, 2))))
    assert sentence.startswith("The step did not change beyond noise")


def test_states_too_few_steps_and_nothing_in_common():
    one = run(random_times(Shape(pipelines=1, steps=1)))
    assert comparison_sentences(compare_runs(one, one))[0].startswith("Too few steps")
    none = compare_runs(empty_timeline(), empty_timeline())
    assert comparison_sentences(none) == ["The runs have nothing in common that could be compared."]
    assert "0 further comparisons" in comparison_tables(none)


def test_the_tables_have_all_parts_and_the_claimed_subjects():
    lines = comparison_tables(slower()).splitlines()
    assert lines[0].split()[:3] == ["mean", "step", "before"]
    assert lines[1].startswith("whole step")
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
