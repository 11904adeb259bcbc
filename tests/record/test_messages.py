from __future__ import annotations

import io
import subprocess
import sys

import pytest

from stagescope.record.messages import in_language_of_user

MESSAGE = "cannot write rank-00002.sscope; spans are dropped and counted"
CHINESE = "无法写入 rank-00002.sscope；span 会丢弃并计数"


@pytest.mark.parametrize(("stated", "shown"), [("zh", CHINESE), ("zh_CN.UTF-8", CHINESE), ("en", MESSAGE)])
def test_messages_are_in_the_language_of_the_environment(stated, shown, monkeypatch):
    monkeypatch.setenv("STAGESCOPE_LANG", stated)
    assert in_language_of_user(MESSAGE) == shown


def test_a_message_is_english_where_standard_error_has_no_chinese(monkeypatch):
    monkeypatch.setenv("STAGESCOPE_LANG", "zh")
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert in_language_of_user(MESSAGE) == MESSAGE


def test_a_catalog_that_cannot_be_read_costs_no_message(monkeypatch):
    monkeypatch.setenv("STAGESCOPE_LANG", "zh")

    def broken(*_):
        raise OSError

    monkeypatch.setattr("stagescope.vocabulary.language.translated", broken)
    assert in_language_of_user(MESSAGE) == MESSAGE


def test_a_process_that_prints_no_message_reads_no_catalog():
    code = "import sys, stagescope.record.recording; print('stagescope.vocabulary.language.catalog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
