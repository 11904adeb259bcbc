"""The documents match the code: commands, options, links, tables, examples and the public API."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import polars as pl
import pytest

import stagescope
import stagescope.api
import stagescope.record
import stagescope.schedules
from drawing import timeline_from_text
from programs import require_program
from stagescope.analysis import build_explained_report, to_json
from stagescope.cli import COMMANDS
from stagescope.model import SPANS
from stagescope.model.validate import conform

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|src=\"(?P<source>[^\"]+)\"")
TARGET = re.compile(r"^(?P<name>[a-z-]+):.*?## (?P<does>.+)$", re.MULTILINE)

by_name = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def load_tool(name):
    specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    return tool


def fenced(document, language):
    text = document.read_text(encoding="utf-8")
    return [block["body"] for block in FENCE.finditer(text) if block["language"] == language]


def shell_lines(program):
    """Return (document, words) for every line of a shell example that starts a program."""
    return [
        (document.name, words)
        for document in DOCUMENTS
        for block in fenced(document, "sh")
        for words in (shlex.split(line, comments=True) for line in block.splitlines())
        if words[:1] == [program]
    ]


def without_code(text):
    return FENCE.sub("", text)


def anchors(document):
    """Return the anchors that the headings of a document have when it is shown as a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_name
def test_links_between_documents_resolve(document):
    broken = []
    for link in LINK.finditer(without_code(document.read_text(encoding="utf-8"))):
        target, _, anchor = (link["target"] or link["source"]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (document.parent / target).resolve() if target else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link[0])
    assert broken == []


@by_name
def test_lines_of_documents_fit_a_page(document):
    text = without_code(document.read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def test_the_chinese_readme_has_the_sections_commands_and_pictures_of_the_english_one():
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    for language in ("sh", "python"):
        assert fenced(chinese, language) == fenced(english, language)
    texts = [path.read_text(encoding="utf-8") for path in (english, chinese)]
    for pattern in (r"^(#+) ", r"!\[[^]]*\]\((\S+)\)", r"^\*\*[^*]+\*\*()"):
        first, other = (re.findall(pattern, without_code(text), re.MULTILINE) for text in texts)
        assert first == other
    assert "(README.zh-CN.md)" in texts[0]
    assert "(README.md)" in texts[1]


def test_decisions_are_numbered_consecutively():
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in decisions]
    assert [path.name[:4] for path in decisions] == [f"{n:04}" for n in range(1, len(decisions) + 1)]
    assert [title.split()[1] for title in titles] == [f"{n}." for n in range(1, len(decisions) + 1)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_documented(command):
    words = {tuple(words[:2]) for name, words in shell_lines("stagescope") if name == "README.md"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ("stagescope", command.name) in words or f"`stagescope {command.name}`" in readme


@pytest.mark.parametrize(
    ("document", "words"),
    shell_lines("stagescope"),
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_shell_examples_use_commands_and_options_that_exist(document, words):
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    modules = {command.name: command.module for command in COMMANDS}
    assert own[0] in modules, f"{document}: no command {own[0]!r}"
    command = importlib.import_module(modules[own[0]]).command
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word.partition("=")[0] for word in own if word.startswith("-")} <= known | {"--help"}


def test_formats_in_shell_examples_can_be_written():
    from stagescope.api import WRITERS  # noqa: PLC0415 - only this test needs the writers

    asked = {words[words.index("--to") + 1] for _, words in shell_lines("stagescope") if "--to" in words}
    assert asked <= {writer.name for writer in WRITERS}


def targets():
    return {
        target["name"]: target["does"] for target in TARGET.finditer((ROOT / "Makefile").read_text("utf-8"))
    }


def test_make_examples_name_targets_that_exist():
    asked = {words[1] for _, words in shell_lines("make") if len(words) > 1}
    assert asked <= set(targets())
    assert {"demo", "test", "check"} <= asked


def test_every_target_of_make_is_described():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    assert sorted(phony) == sorted(targets())


def test_make_lists_every_target_with_its_description():
    done = subprocess.run([require_program("make"), "-C", ROOT], capture_output=True, text=True, check=True)
    for name, does in targets().items():
        assert re.search(rf"^make {name} +{re.escape(does)}$", done.stdout, re.MULTILINE)


def test_generated_parts_of_documents_are_current():
    tool = load_tool("write_docs")
    stale = [
        name
        for name in tool.DOCUMENTS
        if tool.refreshed((ROOT / name).read_text("utf-8")) != (ROOT / name).read_text("utf-8")
    ]
    assert stale == [], "run `make docs`"


def test_detects_a_stale_table():
    tool = load_tool("write_docs")
    formats = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    drifted = formats.replace("Global rank of the process.", "Something else.")
    assert drifted != formats
    assert tool.refreshed(drifted) == formats


def test_every_generated_part_is_in_a_document():
    tool = load_tool("write_docs")
    text = "".join((ROOT / name).read_text("utf-8") for name in tool.DOCUMENTS)
    assert {block["name"] for block in tool.BLOCK.finditer(text)} == set(tool.BLOCKS)


@by_name
def test_python_examples_print_the_stated_output(document):
    examples = doctest.DocTestParser().get_doctest(
        document.read_text(encoding="utf-8"), {}, document.name, str(document), 0
    )
    failures = io.StringIO()
    doctest.DocTestRunner().run(examples, out=failures.write)
    assert failures.getvalue() == ""


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (example,) = fenced(ROOT / "README.md", "python")
    (spans,) = fenced(ROOT / "docs" / "formats.md", "csv")
    monkeypatch.chdir(tmp_path)
    Path("recording").mkdir()
    Path("recording", "spans.csv").write_text(spans, encoding="utf-8")
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - our own document
    assert capsys.readouterr().out == "0 [0] 0.5\n"
    assert Path("run.html").stat().st_size > 0
    assert Path("run.pftrace").stat().st_size > 0


def test_the_documented_api_is_the_public_api():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^### `([\w.]+)`$", text, re.MULTILINE))
    parts = (stagescope, stagescope.api, stagescope.record, stagescope.schedules)
    public = {f"{part.__name__}.{name}" for part in parts for name in part.__all__}
    repeated = {f"stagescope.api.{name}" for name in stagescope.__all__}
    assert documented == public - repeated - {
        "stagescope.record",
        "stagescope.schedules",
        "stagescope.__version__",
    }


def test_the_files_of_the_guide_to_additions_exist():
    text = (ROOT / "docs" / "how-to-add.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:src|tests|docs|tools|web|benchmarks)/[\w./-]+)`", text))
    assert len(paths) > 30
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_every_key_of_the_report_is_described():
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    (example,) = fenced(ROOT / "docs" / "report.md", "json")
    described = set(re.findall(r"`(\w+)`", text[text.index("## As JSON") :]))
    written = to_json(build_explained_report(timeline_from_text("F0 B0\n. F0 B0")))
    assert (set(json.loads(example)) | set(written)) - described == set()


def test_the_table_file_example_is_a_table_of_spans():
    (example,) = fenced(ROOT / "docs" / "formats.md", "csv")
    spans = conform(pl.read_csv(io.StringIO(example)), SPANS)
    assert spans.height == 4
