from stagescope.vocabulary.causes import (
    BY_COLUMN,
    CAUSE_COLUMNS,
    CAUSES,
    WAIT_LABELS,
)
from stagescope.vocabulary.palette import WAIT_SWATCHES


def test_every_cause_has_one_column_and_one_label():
    labels = {cause.label for cause in CAUSES}
    assert len(BY_COLUMN) == len(CAUSE_COLUMNS) == len(labels) == len(CAUSES)
    assert CAUSE_COLUMNS[-1] == "unattributed_ns"
    assert BY_COLUMN["exposed_communication_ns"].label == "exposed communication"


def test_every_wait_has_a_swatch():
    assert list(WAIT_LABELS) == list(WAIT_SWATCHES)
