from stagescope.vocabulary.causes import (
    BY_COLUMN,
    CAUSE_COLUMNS,
    CAUSES,
    ITERATION_CAUSES,
    ITERATION_COLUMNS,
    WAIT_LABELS,
)
from stagescope.vocabulary.palette import WAIT_SWATCHES


def test_every_cause_has_one_column_and_one_label():
    labels = {cause.label for cause in ITERATION_CAUSES}
    assert len(BY_COLUMN) == len(ITERATION_COLUMNS) == len(labels) == len(ITERATION_CAUSES)
    assert set(CAUSE_COLUMNS) == {cause.column for cause in CAUSES} < set(ITERATION_COLUMNS)
    assert CAUSE_COLUMNS[-1] == ITERATION_COLUMNS[-1] == "unattributed_ns"
    assert BY_COLUMN["exposed_communication_ns"].label == "exposed communication"


def test_every_wait_has_a_swatch():
    assert list(WAIT_LABELS) == list(WAIT_SWATCHES)
