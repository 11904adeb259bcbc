"""Patterns for action names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.ingest.annotations.name_pattern import KIND_OF, NamePattern
from stagescope.vocabulary.errors import UsageError


@settings(deadline=None)
@given(st.sampled_from(sorted(KIND_OF)), st.integers(0, 10**9 - 1), st.integers(0, 999))
def test_a_pattern_recovers_the_fields_of_a_name(word, microbatch, stage):
    action = NamePattern("s{stage}|{kind}:{microbatch}").action(f"s{stage}|{word.upper()}:{microbatch}")
    assert (action.kind, action.numbers) == (KIND_OF[word], {"stage": stage, "microbatch": microbatch})


def test_the_longest_kind_word_has_precedence_and_a_star_matches_anything():
    assert NamePattern("{kind}{microbatch}*").action("backward_weight3 (fused)").kind == "backward_weight"
    assert NamePattern("{kind}{microbatch}").action("backward_weight3 (fused)") is None


def test_regular_expression_characters_match_literally():
    assert NamePattern("({kind}).[{microbatch}]").action("(F).[2]").numbers == {"microbatch": 2}
    assert NamePattern("{kind}.{microbatch}").action("Fx2") is None


@pytest.mark.parametrize("text", ["", "{microbatch}", "{kind}{kind}", "{kind", "{kind}{color}", "{kind}}"])
def test_an_invalid_pattern_is_rejected(text):
    with pytest.raises(UsageError, match=r"expected \{kind\} exactly once"):
        NamePattern(text)
