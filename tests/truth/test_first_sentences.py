"""The first sentence of the verdict names every planted cause, and what it is on."""

import pytest

from truth.cases import PLANTED
from truth.confusion import rows_of

SEED = 2
CASES = {case.name: case for case in (build(SEED) for build in PLANTED)}
UNNAMED = {
    "one rank 3 % slower, noise 3 %": "it costs less than a point",
    "rank 2 50 % slower, blocking sends, one buffer": "its second cause costs less than a point once the first is gone",
}
PLACES = {
    "one action 1 s longer": "(F2.4 on rank 2 in step 3 took 1.0",
    "garbage collection once per rank": "once per rank in rank order, as garbage collection does)",
    "micro-batches of unequal length, 4 replicas": "(the last pipeline changes: ",
    "one rank 20 % slower, 4 replicas": "straggler (rank 13 is 20.1 % slower)",
    "a replica 20 % slower, 2 replicas": "straggler (all ranks of the pipeline of rank 4)",
    "one link 4 ms slower": "exposed communication (link from rank 1 to rank 2)",
    "15 ms of data loading before each forward of stage 0": "data loading (rank 0)",
    "15 ms of data loading before each forward of stage 0, not recorded": "(nothing recorded before forwards of rank 0",
    "15 ms of data loading before each step": "data loading (rank 0)",
    "15 ms of data loading before each step, not recorded": "(nothing recorded before the first forward of rank 0 in",
    "all-reduce 60 ms, optimizer 20 ms": "gradient reduction (60.00 ms)",
    "all-reduce 62 ms in the last backward of stage 1, 1f1b": "gradient reduction (ranks of stage 1, 68.00 ms)",
    "all-reduce 62 ms in the last backward of stage 5, interleaved, overlapped": "(ranks of stage 5, 5",
    "all-reduce 62 ms in the last backward of stage 1, zb-v": "gradient reduction (ranks of stage 1, ",
    "1 ms to launch every action": " µs per action)",
}
"""What the first sentence has about the culprit, in full."""


OFTEN_TESTED = tuple(name for name in CASES if "in the last backward" not in name or "1f1b" in name)[::2]
"""The other ones are tested with the exhaustive tests."""


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN_TESTED else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES],
)
def test_cause_and_culprit_are_in_the_first_sentence(name):
    for row in rows_of([CASES[name]]):
        if row.is_named:
            assert PLACES.get(name, "") in row.reported.first_sentence
        else:
            assert name in UNNAMED, row.reported.first_sentence
