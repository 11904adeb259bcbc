from drawing import timeline_from_text
from stagescope.exporters.inflight import count_in_flight


def counter(text, rank=0):
    counts = count_in_flight(timeline_from_text(text, cell_ns=10).spans)
    return [(time, value) for at, time, value in counts.rows() if at == rank]


def test_counts_from_the_forwards_start_to_the_backwards_end():
    assert counter("F0 F1 . B0 B1") == [(0, 1), (10, 2), (40, 1), (50, 0)]


def test_input_gradient_alone_keeps_a_microbatch_in_flight():
    assert counter("F0 I0 . W0") == [(0, 1), (40, 0)]
    assert counter("F0 I0") == [(0, 1)]


def test_stages_of_one_rank_count_each():
    assert counter("F0.0 F1.0 B1.0 B0.0") == [(0, 1), (10, 2), (30, 1), (40, 0)]


def test_backward_without_its_forward_does_not_count():
    assert counter("B7 F0 B0") == [(10, 1), (30, 0)]


def test_ranks_are_counted_separately():
    text = """
        F0 . . B0
        . F0 B0 .
    """
    assert counter(text, rank=0) == [(0, 1), (40, 0)]
    assert counter(text, rank=1) == [(10, 1), (30, 0)]
