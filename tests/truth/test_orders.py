"""The truth simulator's own orders equal those of reference implementations."""

from __future__ import annotations

import pytest

from golden_orders import golden_cases
from truth.orders import SCHEDULES, Size

GOLDEN = {
    "gpipe": "torch_gpipe",
    "1f1b": "torch_1f1b_executed",
    "interleaved": "megatron_1f1b_vpp",
    "zb-h1": "torch_zbh1",
    "zb-v": "torch_zbv",
    "dualpipev": "deepseek_dualpipev",
}

SUPPORTED = {
    # With one chunk it is 1F1B, and the same file has Megatron's variant with overlapped pairs.
    "interleaved": lambda size, text: (
        size.chunks > 1 and size.microbatches % size.ranks == 0 and "+" not in text
    ),
    "zb-v": lambda size, _: size.microbatches >= 2 * size.ranks,
}
"""The sizes that the simulator supports, where not all are."""


@pytest.mark.parametrize("name", GOLDEN)
def test_orders_equal_those_of_the_reference_implementation(name):
    found = 0
    for ranks, microbatches, golden in golden_cases(GOLDEN[name]):
        stages = 1 + max(int(word[1:].split(".")[0]) for row in golden.values() for word in row)
        size = Size(ranks, microbatches, stages // ranks)
        if name in SUPPORTED and not SUPPORTED[name](size, str(golden)):
            continue
        assert dict(enumerate(SCHEDULES[name][0](size))) == golden, size
        found += 1
    assert found
