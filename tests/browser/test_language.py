"""The page in Chinese: chosen by the browser, by the file or by a switch, and without English words."""

import re

import pytest

from stagescope.viewer.page import write_html
from stagescope.vocabulary.language import speaking

pytestmark = pytest.mark.slow

WORD = re.compile(r"[A-Za-z]{3,}")
TERMS = frozenset(
    (
        *("rank", "ranks", "span", "spans", "kernel", "English", "SVG", "PNG", "PDF", "Shift", "Ctrl", "Alt"),
        *("stage", "dur", "kind", "forward", "dualpipe", "GPipe", "gpipe"),
    )
)
"""Terms, names of schedules and keys, and examples of queries."""

TEXTS = """() => {
    const found = [document.body.innerText];
    for (const one of document.querySelectorAll('[title], [aria-label], [placeholder]'))
        for (const name of ['title', 'aria-label', 'placeholder'])
            if (one.getAttribute(name)) found.push(one.getAttribute(name));
    return found;
}"""


def english_words(shown):
    """Return the English words on the page and in its hints, besides terms."""
    texts = "\n".join(shown.page.evaluate(TEXTS))
    texts = re.sub(r"node\S*|[\w-]*\d[\w.-]*", " ", texts)
    return sorted(set(WORD.findall(texts)) - TERMS)


@pytest.fixture
def chinese(open_page, run_page):
    return open_page(run_page, locale="zh-CN")


def test_page_has_no_english_words_in_a_chinese_browser(chinese):
    shown = chinese
    assert shown.page.evaluate("() => document.documentElement.lang") == "zh-CN"
    assert "时间花在哪里" in shown.page.inner_text(".side")
    assert english_words(shown) == []


def test_switch_changes_the_language_and_links_keep_it(shown):
    assert shown.page.evaluate("() => document.documentElement.lang") == "en"
    with shown.page.expect_navigation():
        shown.page.click("button.language")
    shown.page.wait_for_function("() => window.stagescopeViewer")
    assert "lang=zh" in shown.page.url
    assert shown.page.inner_text("button.language") == "English"
    with shown.page.expect_navigation():
        shown.page.click("button.language")
    shown.page.wait_for_function("() => window.stagescopeViewer")
    assert "lang=en" in shown.page.url
    assert shown.page.inner_text("button.language") == "中文"
    del shown.requests[1:]  # the file again, once for each language


def test_file_states_the_language_that_it_was_written_in(tmp_path, run):
    for language, stated in (("en", '<html lang="en">'), ("zh", '<html lang="zh-CN">')):
        with speaking(language):
            write_html(run, tmp_path / f"{language}.html")
        assert stated in (tmp_path / f"{language}.html").read_text(encoding="utf-8")[:100]
