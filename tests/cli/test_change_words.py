import pytest

from stagescope.api import Slower
from stagescope.cli.change_words import parse_change
from stagescope.vocabulary.errors import UsageError


@pytest.mark.parametrize(
    ("option", "text", "change"),
    [
        ("--faster", "10%", Slower(factor=0.9)),
        ("--slower", "200 %", Slower(factor=3.0)),
        ("--faster", "stage=3:10%", Slower(factor=0.9, stage=3)),
        ("--slower", " rank = 2 , kind = backward : 2.5% ", Slower(factor=1.025, rank=2, kind="backward")),
    ],
)
def test_parses_changes(option, text, change):
    assert parse_change(option, text) == change


@pytest.mark.parametrize(
    "text", ["100%", "101%", "stage:5%", "machine=1:5%", "stage=1,stage=1:5%", "kind=loss:1%", "%"]
)
def test_rejects_malformed_changes(text):
    with pytest.raises(UsageError, match="expected a percentage"):
        parse_change("--faster", text)
