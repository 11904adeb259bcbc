from stagescope.schedules import order


def line(actions):
    return " ".join(map(str, actions))


def test_first_half_of_a_unit_goes_down_and_second_half_up():
    four = order("chimera", ranks=4, microbatches=4)
    assert line(four[0]) == "F0.0 F0.1 F3.2 B3.2 F3.3 B3.3 B0.0 B0.1"
    assert line(four[3]) == "F0.2 F0.3 F3.0 B3.0 F3.1 B3.1 B0.2 B0.3"


def test_a_unit_starts_in_free_slots_of_the_previous_one():
    eight = line(order("chimera", ranks=4, microbatches=8)[0])
    assert "B0.0 F0.4 B0.1 F0.5" in eight


def test_opposite_ranks_mirror_each_other():
    built = order("chimera", ranks=6, microbatches=12)
    for rank in range(6):
        mirrored = [
            action._replace(microbatch=(action.microbatch // 6) * 6 + (action.microbatch + 3) % 6)
            for action in built[rank]
        ]
        assert mirrored == built[5 - rank]


def test_units_repeat_on_two_ranks():
    assert line(order("chimera", ranks=2, microbatches=4)[0]) == "F0.0 F1.1 B1.1 B0.0 F0.2 F1.3 B1.3 B0.2"
