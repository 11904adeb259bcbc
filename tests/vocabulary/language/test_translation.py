"""Texts in another language: with values, of parts, and what is never translated."""

import pytest

from stagescope.vocabulary.language import CHINESE, Foreign, localized, speaking, translated
from stagescope.vocabulary.language.translation import is_neutral, split_outside


def test_english_is_unchanged():
    assert localized("The bubble is unknown: no actions.") == "The bubble is unknown: no actions."


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("stage imbalance", "阶段不均衡"),
        ("1 rank", "1 个 rank"),
        ("4 ranks", "4 个 rank"),
        ("  4 ranks ", "  4 个 rank "),
        ("Rank 3 is 12.0 % slower than ranks of the same stage (95 % CI 9.0 to 15.1 %, n = 9).",
         "rank 3 比同一阶段的其他 rank 慢 12.0 %（95 % 置信区间 9.0 到 15.1 %，n = 9）。"),
        ("not recorded: data loading, optimizer", "未采集：数据加载，优化器"),
        ("step 3: 7.000 ms", "第 3 步：7.000 ms"),
        ("no ranks to measure; no steps to measure", "没有可测量的 rank；没有可测量的步"),
    ],
)  # fmt: skip
def test_values_are_kept_and_texts_within_a_text_are_translated(english, chinese):
    assert translated(english, "zh") == chinese


def test_sentences_are_translated_one_by_one():
    text = "All timestamps come from one clock. No change was tested."
    assert translated(text, "zh") == "所有时间戳来自同一时钟。没有测试任何改动。"


def test_names_are_never_looked_up():
    assert translated("jitter", "zh") == "抖动"
    assert translated(Foreign("jitter"), "zh") == "jitter"
    assert translated("no such file or directory: jitter", "zh") == "没有该文件或目录：jitter"


@pytest.mark.parametrize(
    "place", ["runs/a b.db", "trace.json", "rules/m.toml, table N", "1f1b", "s3://bucket/x"]
)
def test_a_text_behind_a_place_is_translated(place):
    assert translated(f"{place}: it needs too much memory", "zh") == f"{place}：它需要的内存太多"
    assert translated(f"{place}: no catalog has this", "zh") == f"{place}: no catalog has this"


def test_words_before_a_text_are_no_place():
    assert translated("no catalog: it needs too much memory", "zh") == "no catalog: it needs too much memory"


def test_what_is_unknown_stays_english():
    assert translated("no catalog has this", "zh") == "no catalog has this"
    assert translated("The bubble is unknown: for no reason.", "zh") == "空泡未知：for no reason。"


def test_texts_that_are_too_long_are_not_looked_up():
    text = "jitter, " * 1000
    assert translated(text, "zh") == text


def test_language_applies_within_its_block():
    with speaking("zh"):
        assert localized("jitter") == "抖动"
    assert localized("jitter") == "jitter"


def test_separators_in_parentheses_separate_nothing():
    assert split_outside("a (b, c), d", ", ") == ["a (b, c)", "d"]
    assert split_outside("a", ", ") == ["a"]


def test_numbers_units_and_actions_are_the_same_in_every_language():
    assert is_neutral("12.30 ms")
    assert is_neutral("F0.3")
    assert not is_neutral("rank 3")


def test_a_formula_keeps_its_parentheses():
    assert translated("2 (p - r - 1)", CHINESE) == "2 (p - r - 1)"


def test_an_article_alone_is_not_a_translation():
    untranslated = "the planted sentence that no catalog has"
    assert translated(untranslated, CHINESE) == untranslated
    assert translated("the forward_step", CHINESE) == " forward_step "


def test_a_template_may_begin_a_sentence():
    message = "the picture shows step 4; other steps are not drawn"
    sentence = f"T{message[1:]} (3)."
    assert translated(sentence, CHINESE) == f"{translated(message, CHINESE)}（3）。"
    assert "step" not in translated(message, CHINESE)
