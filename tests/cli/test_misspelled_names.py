"""A misspelled name is an error that names what was probably meant, before anything else about the call is checked."""

import pytest

from stagescope.cli import main

MISSPELLED = {
    "shwo": (2, "No such command 'shwo'. Did you mean 'show'?"),
    "simulate 1f1bb": (1, "unknown schedule '1f1bb'; did you mean '1f1b'?"),
    "report missing --fail-if bubbel>0.3": (2, "unknown quantity 'bubbel'; did you mean 'bubble'?"),
}


@pytest.mark.parametrize("call", MISSPELLED)
def test_the_known_name_is_suggested(call, capsys):
    code, text = MISSPELLED[call]
    assert main(call.split()) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("call", ["quux", "simulate quux"])
def test_a_name_like_no_other_gets_no_suggestion(call, capsys):
    assert main(call.split()) > 0
    err = capsys.readouterr().err
    assert "'quux'" in err
    assert "ean '" not in err
