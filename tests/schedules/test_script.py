import doctest

from stagescope.schedules import script
from stagescope.schedules.script import Chunk, expand_script

V = [Chunk(stage=1), Chunk(stage=6)]


def line(*lines, chunks=V):
    return " ".join(map(str, expand_script(lines, chunks)))


def test_actions_of_a_kind_and_chunk_take_micro_batches_in_order():
    assert line((2, "F0 F1"), (1, "F0 B1")) == "F1.0 F6.0 F1.1 F6.1 F1.2 B6.0"


def test_full_and_split_backwards_share_their_numbers():
    assert line((1, "B1 I1 W1 B1")) == "B6.0 I6.1 W6.1 B6.2"


def test_a_weight_gradient_without_chunk_is_the_oldest_pending():
    assert line((1, "I1 I0 I1 W W0 W")) == "I6.0 I1.0 I6.1 W6.0 W1.0 W6.1"


def test_a_weight_gradient_of_a_chunk_overtakes_older_ones_of_the_other():
    assert line((1, "I1 I0 W0 W1")) == "I6.0 I1.0 W1.0 W6.0"


def test_a_pair_is_one_action():
    assert line((1, "F0 B1 F1+B0")) == "F1.0 B6.0 F6.0+B1.0"


def test_a_chunk_may_begin_with_a_later_microbatch():
    assert line((2, "F0 F1"), chunks=[Chunk(0), Chunk(3, first_microbatch=8)]) == "F0.0 F3.8 F0.1 F3.9"


def test_a_line_with_zero_repetitions_is_empty():
    assert line((0, "F0"), (1, "F1")) == "F6.0"


def test_example_runs():
    assert doctest.testmod(script).failed == 0
