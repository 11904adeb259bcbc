"""The language of texts: of the environment, and within a block."""

import pytest

from stagescope.vocabulary.language import current_language, language_of, speaking


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh-Hans"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LC_ALL": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LC_ALL": "", "LANG": "zh"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
        ({"STAGESCOPE_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, "en"),
        ({"STAGESCOPE_LANG": "zh", "LC_ALL": "C"}, "zh"),
        ({"STAGESCOPE_LANG": "klingon"}, "en"),
    ],
)
def test_language_is_that_of_the_first_variable_that_is_set(environment, language):
    assert language_of(environment) == language


def test_language_is_english_outside_of_a_block_and_if_unknown():
    assert current_language() == "en"
    with speaking("zh"):
        assert current_language() == "zh"
        with speaking("klingon"):
            assert current_language() == "en"
        assert current_language() == "zh"
    assert current_language() == "en"
