from stagescope.vocabulary.counts import counted


def test_one_is_singular_and_all_else_plural():
    assert [counted(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert counted(2, "micro-batch", "micro-batches") == "2 micro-batches"
