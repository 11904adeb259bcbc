import pytest

from stagescope.schedules import order


def line(actions):
    return " ".join(map(str, actions))


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 2), (1, 5), (2, 4), (3, 7), (4, 8), (4, 13)])
def test_dualpipev_is_half_of_a_folded_dualpipe(ranks, microbatches):
    whole = order("dualpipe", ranks=2 * ranks, microbatches=2 * microbatches)

    def fold(action):
        return action._replace(
            microbatch=action.microbatch % microbatches, partner=action.partner and fold(action.partner)
        )

    half = {rank: [fold(action) for action in whole[rank]] for rank in range(ranks)}
    assert half == order("dualpipev", ranks=ranks, microbatches=microbatches)


def test_opposite_ranks_of_dualpipe_mirror_each_other():
    built = order("dualpipe", ranks=6, microbatches=14)

    def mirror(action):
        return action._replace(
            microbatch=(action.microbatch + 7) % 14, partner=action.partner and mirror(action.partner)
        )

    assert all([mirror(action) for action in built[rank]] == built[5 - rank] for rank in range(6))


def test_innermost_rank_does_not_overlap_its_first_pair():
    assert "F3.4 B4.0 F4.4+B3.0 F3.5+B4.1" in line(order("dualpipev", ranks=4, microbatches=8)[3])
    assert "F2.5+B5.1" in line(order("dualpipev", ranks=4, microbatches=8)[2])


def test_second_half_of_the_cooldown_is_split():
    cooldown = line(order("dualpipev", ranks=2, microbatches=4)[1]).split("F2.3+B1.1 ")[1]
    assert cooldown == "B2.2 B1.2 I2.3 I1.3 W2.3 W1.3"


def test_cooldown_may_run_full_backwards():
    whole = order("dualpipev", ranks=4, microbatches=10, split_cooldown=False)
    split = order("dualpipev", ranks=4, microbatches=10)
    for rank in range(4):
        assert line(whole[rank]).count("W") == 3 - rank
        unsplit = [
            action._replace(kind="B") if action.kind == "I" else action
            for action in split[rank]
            if action.kind != "W"
        ]
        assert [
            action._replace(kind="B") if action.kind == "I" else action
            for action in whole[rank]
            if action.kind != "W"
        ] == unsplit
