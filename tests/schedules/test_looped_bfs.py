from stagescope.schedules import order


def test_a_chunk_runs_all_its_microbatches_before_the_next():
    assert " ".join(map(str, order("looped-bfs", ranks=2, microbatches=2, chunks=2)[0])) == (
        "F0.0 F0.1 F2.0 F2.1 B2.1 B2.0 B0.1 B0.0"
    )


def test_with_one_chunk_it_is_gpipe_in_reverse():
    assert order("looped-bfs", ranks=3, microbatches=5, chunks=1) == order(
        "gpipe", ranks=3, microbatches=5, lifo=True
    )
