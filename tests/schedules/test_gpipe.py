from stagescope.schedules import order


def test_every_forward_runs_before_every_backward():
    assert " ".join(map(str, order("gpipe", ranks=2, microbatches=3)[1])) == "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2"


def test_lifo_runs_the_backwards_in_reverse():
    assert " ".join(map(str, order("gpipe", ranks=2, microbatches=3, lifo=True)[1])) == (
        "F1.0 F1.1 F1.2 B1.2 B1.1 B1.0"
    )
