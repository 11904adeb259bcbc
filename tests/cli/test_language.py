"""The commands in Simplified Chinese: help, reports, errors; what programs read stays English."""

from __future__ import annotations

import json
import re

import pytest

from golden_outputs import GOLDEN, RECORDING
from places import DATA
from stagescope.cli import COMMANDS, main
from stagescope.cli.help_language import language_of_call
from stagescope.vocabulary.language import cell_width

WORD = re.compile(r"[A-Za-z]{3,}")
TERMS = frozenset(
    [
        *(
            "rank",
            "ranks",
            "span",
            "kernel",
            "slice",
            "trace",
            "stagescope",
            "torch",
            "profiler",
            "Python",
            "vm",
        ),
        *(
            "Megatron",
            "core",
            "DeepSpeed",
            "Paddle",
            "MindSpeed",
            "FlagScale",
            "Primus",
            "ColossalAI",
            "MindStudio",
        ),
        *(
            "Insight",
            "Perfetto",
            "Chrome",
            "SQL",
            "Parquet",
            "OpenTelemetry",
            "DualPipeV",
            "gpipe",
            "COMMAND",
            "ARGS",
        ),
        *("OPTIONS", "PATH", "worker"),
    ]
)
"""Terms and names that Chinese texts have in Latin letters; further ones are in code, paths and options."""

CODE = re.compile(
    r"`[^`]*`|'[^']*'|\"[^\"]*\"|--[\w-]+|\[[^\]]*\]|\b[\w.-]*[_/.:=<>\d*][\w./:=<>*-]*|\b[A-Z][A-Z|]+\b"
)


@pytest.fixture(autouse=True)
def chinese(monkeypatch):
    monkeypatch.setenv("STAGESCOPE_LANG", "zh")


def english_words(text: str) -> list[str]:
    """Return the English words of a text, except terms, names and code."""
    return [word for word in WORD.findall(CODE.sub(" ", text)) if word not in TERMS]


@pytest.mark.parametrize(
    "words",
    [
        ("report", str(RECORDING)),
        ("report", str(RECORDING), "--markdown"),
        ("show", str(RECORDING), "--no-color"),
        ("clocks", str(DATA / "paddle_fleet")),
        ("what-if", str(RECORDING)),
        ("compare", str(DATA / "kineto" / "1F1B"), str(DATA / "kineto" / "GPipe")),
    ],
    ids=lambda words: words[0],
)
def test_output_has_no_english_words(words, capsys):
    assert main(words) in (0, 1)
    printed = capsys.readouterr()
    assert english_words(printed.out + printed.err) == []
    assert re.search("[\u4e00-\u9fff]", printed.out)


def test_list_of_schedules_is_chinese_except_names_formulas_and_sources(capsys):
    assert main(("simulate", "--list")) == 0
    every = capsys.readouterr().out
    assert "min(m v, (v - 1) N + 2 (p - r - 1) + 1)" in " ".join(every.split())
    assert re.search(r"^dualpipe  DualPipe\n", every, re.MULTILINE)
    for line in every.splitlines():
        word = line.split("：")[0].strip()
        assert not word.startswith(("placement", "source", "needs", "option")), line
    assert "要求：rank 数为偶数" in every
    assert "1f1b-overlap  带重叠对的 1F1B" in every


def test_a_constraint_of_a_schedule_is_chinese_in_an_error(capsys):
    assert main(("simulate", "dualpipe", "--ranks", "3", "--microbatches", "8")) != 0
    assert "dualpipe 需要 rank 数为偶数" in capsys.readouterr().err


def test_report_fits_the_terminal(capsys):
    main(("report", str(RECORDING)))
    assert max(map(cell_width, capsys.readouterr().out.split("\n\n提示")[0].splitlines())) <= 80


def test_columns_of_tables_are_aligned(capsys):
    main(("report", str(RECORDING)))
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("阶段 "))) :][:9]
    assert len({cell_width(line) for line in table}) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_is_chinese(command, capsys):
    assert main((command.name, "--help")) == 0
    printed = capsys.readouterr().out
    prose = "\n".join(line for line in printed.splitlines() if re.search("[\u4e00-\u9fff]", line))
    assert prose.startswith("用法：")
    assert "\n选项：" in prose
    assert max(map(cell_width, prose.split("示例：", maxsplit=1)[0].splitlines())) <= 80


def test_list_of_commands_is_chinese(capsys):
    assert main(("--help",)) == 0
    printed = capsys.readouterr().out
    assert "报告时间花在哪里" in printed
    summaries = [
        line for line in printed.splitlines() if line.startswith("  ") and not line.startswith("    ")
    ]
    assert len(summaries) > len(COMMANDS)
    assert english_words(" ".join(line.strip().partition(" ")[2] for line in summaries)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "nowhere"), "stagescope: 没有该文件或目录：nowhere"),
        (("shwo",), "错误：没有命令 'shwo'。是否指 'show'？"),
        (("report",), "错误：缺少参数 'PATH...'。"),
        (("report", "x", "--bogus"), "错误：没有选项 '--bogus'。"),
        (("simulate", "1f1b"), "stagescope: 缺少 --ranks 和 --microbatches"),
        (("show", "x", "--width", "3"), "--width"),
    ],
)
def test_errors_are_chinese(words, message, capsys):
    assert main(words) in (1, 2)
    printed = capsys.readouterr().err
    assert message in printed
    assert english_words(re.sub("nowhere|report|show", "", printed)) == []


def test_language_of_a_call_may_be_stated_anywhere_before_two_dashes(monkeypatch):
    monkeypatch.setattr("stagescope.cli.help_language.shows_chinese", lambda: True)
    monkeypatch.setenv("STAGESCOPE_LANG", "en")
    assert language_of_call(["--lang", "zh", "report", "x"]) == "zh"
    assert language_of_call(["report", "x", "--lang=zh"]) == "zh"
    assert language_of_call(["run", "--", "train.py", "--lang", "zh"]) == "en"
    assert language_of_call(["show", "x", "--lang", "zh", "--ascii"]) == "en"
    monkeypatch.setenv("STAGESCOPE_LANG", "zh")
    assert language_of_call(["report", "x", "--lang", "en"]) == "en"


def test_language_is_english_where_the_output_has_no_chinese(monkeypatch):
    monkeypatch.setattr("stagescope.cli.help_language.shows_chinese", lambda: False)
    assert language_of_call(["report", "--lang", "zh"]) == "en"


def test_an_unknown_language_is_refused(capsys):
    assert main(("report", "x", "--lang", "xx")) == 2
    assert "--lang" in capsys.readouterr().err


def test_json_and_names_are_never_translated(capsys):
    assert main(("report", str(RECORDING), "--json", "-")) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        (GOLDEN / "report.json").read_text(encoding="utf-8")
    )


def test_tables_of_sql_are_data(capsys):
    query = "select 'jitter' as bubble, kind from spans where kind = 'loss' limit 1"
    assert main(("sql", str(RECORDING), query)) == 0
    assert capsys.readouterr().out.split() == ["bubble", "kind", "jitter", "loss"]


def test_the_next_call_has_its_own_language(monkeypatch, capsys):
    main(("simulate", "--help"))
    assert "仿真" in capsys.readouterr().out
    monkeypatch.setenv("STAGESCOPE_LANG", "en")
    main(("simulate", "--help"))
    assert "Simulate schedules" in capsys.readouterr().out
