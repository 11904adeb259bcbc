"""The table of signatures: what is read of sources and archives, what pip is asked, and what a check finds."""

from __future__ import annotations

import importlib.util
import socket
import textwrap

import pytest
from tools.compatibility import __main__ as command
from tools.compatibility import registry
from tools.compatibility.archives import read_archive, read_folder, write_folder
from tools.compatibility.catalog import SOURCES, Source
from tools.compatibility.cells import silent_cells
from tools.compatibility.declared import parameter_names
from tools.compatibility.registry import RegistryError, UnreachableError, download, list_releases
from tools.compatibility.schedules import unknown
from tools.compatibility.signatures import Sources
from tools.compatibility.supported import is_supported
from tools.compatibility.table import Snapshot, Table, difference, read_table, write_table

import package_index
from stagescope.record.points import Part

MODULE = """
import sys
from .transport import send as move
if sys.version_info >= (3, 99):
    def issue(ops): ...
else:
    try:
        def issue(ops: list[int], desc: str | None = None) -> list[int]: ...
    except ImportError:
        pass

LIMIT: int = 3
async def wait(*, group, timeout=30): ...

class Base:
    names = {}
    @property
    def has_backward(self) -> bool: ...
    @has_backward.setter
    def has_backward(self, value: bool) -> None: ...
    @classmethod
    def pop(cls, chunk: int = 0): ...
    @torch.no_grad()
    def step(self, first, /, *args: int, target=None, **kwargs: str): ...

class Middle(package.Base): ...
class Kinds(Enum):
    FORWARD = "F"
    BACKWARD = 2
"""


LAST = """
from .. import *
from pipe.missing import *
from pipe import Middle
class Last(Middle, Generic[int]): ...
class Stranger: ...
"""


@pytest.fixture
def sources():
    return Sources({"pipe/__init__.py": MODULE, "pipe/more/last.py": LAST})


@pytest.mark.parametrize(
    ("point", "definition"),
    [
        ("pipe:issue", "(ops, desc=None)"),
        ("pipe:wait", "async (*, group, timeout=30)"),
        ("pipe:Base.step", "(self, first, /, *args, target=None, **kwargs)"),
        ("pipe:Base.pop", "classmethod (cls, chunk=0)"),
        ("pipe:Base.has_backward", "property (self)"),
        ("pipe:Base.names", "value"),
        ("pipe:LIMIT", "value"),
        ("pipe:Base", "class"),
        ("pipe:move", "imported from transport"),
        ("pipe:sys", "imported from its package"),
        ("pipe.more.last", "module"),
        ("pipe.more.last:LIMIT", "imported from pipe"),
        ("pipe.more.last:MISSING", None),
        ("pipe.more.last:Last", "class"),
        ("pipe:Middle.step", None),
        ("pipe:Missing.step", None),
        ("pipe:send", None),
        ("pipe.more.missing:Last", None),
        ("pipe.missing", None),
    ],
)
def test_normalizes_a_definition(sources, point, definition):
    assert sources.definition(point) == definition


def test_finds_classes_derived_in_other_modules(sources):
    assert sources.derived_classes(["Base"]) == ["pipe.more.last:Last", "pipe:Middle"]


def test_finds_functions_by_name_and_members_of_an_enum(sources):
    assert sources.functions("iss.*|wait") == ["pipe:issue", "pipe:issue", "pipe:wait"]
    assert sources.members("pipe:Kinds") == ["FORWARD", "BACKWARD"]
    assert sources.modules == ["pipe", "pipe.more.last"]


def test_names_the_file_that_cannot_be_parsed():
    with pytest.raises(SyntaxError) as caught:
        Sources({"pipe/new.py": "def f(: ..."}).definition("pipe.new:f")
    assert caught.value.filename == "pipe/new.py"


@pytest.mark.parametrize(
    ("definition", "names"),
    [
        ("(self, a, /, b=(1, 2), *, c)", {"self", "a", "b", "c"}),
        ("classmethod (cls, chunk=0)", {"cls", "chunk"}),
        ("(self, *args)", None),
        ("(**kwargs)", None),
        ("imported from transport", None),
        ("value", None),
    ],
)
def test_reads_the_parameters_of_a_definition(definition, names):
    assert parameter_names(definition) == names


FILES = {"pipe/a.py": "A = 1\n", "pipe/deep/b.py": "B = 2\n", "pipe/data.txt": "no", "other/c.py": "C = 3\n"}
WANTED = {"pipe/a.py": "A = 1\n", "pipe/deep/b.py": "B = 2\n"}


def test_reads_the_wanted_files_of_a_source_archive(tmp_path):
    path = tmp_path / "pipe-1.0.tar.gz"
    package_index.write_source_archive(path, "pipe", "1.0", FILES)
    assert read_archive(path, ["pipe/"]) == WANTED


def test_reads_back_what_it_keeps_in_a_folder(tmp_path):
    write_folder(tmp_path, FILES)
    assert read_folder(tmp_path, ["pipe/"]) == WANTED


def test_a_table_keeps_every_release(tmp_path):
    snapshots = {
        "1.9": Snapshot({"p:f": "(a)"}, ["p:S"], [], ["p"]),
        "1.10": Snapshot({"p:f": "(a)", "p:g": "(b)"}, ["p:S", "p:T"], ["F"], ["p", "p.q"]),
        "2.0": Snapshot({"p:g": "(b)"}, ["p:S"], ["F"], ["p"]),
        "2.1": Snapshot({"p:f": "(a)", "p:g": "(b)"}, ["p:S"], ["F"], ["p"]),
    }
    table = Table(["p:absent", "p:f", "p:g"], snapshots)
    write_table("pipe", table, tmp_path)
    assert read_table("pipe", tmp_path) == table
    assert '"(a)": "1.9 .. 1.10, 2.1"' in (tmp_path / "pipe.json").read_text()


def test_a_source_without_a_table_has_no_releases(tmp_path):
    assert read_table("pipe", tmp_path) == Table([], {})


def test_states_each_difference_between_two_releases():
    old = Snapshot({"p:f": "(a)", "p:g": "(b)"}, ["p:S"], ["F"], ["p"])
    new = Snapshot({"p:f": "(a, c)", "p:h": "(d)"}, ["p:T"], ["F"], ["p"])
    assert difference(old, new) == [
        "p:f: (a) -> (a, c)",
        "p:g: (b) -> absent",
        "p:h: absent -> (d)",
        "new in schedules: p:T",
        "no longer in schedules: p:S",
    ]


def test_lists_what_is_not_known():
    known = "torch.distributed.pipelining.schedules:ScheduleGPipe"
    snapshot = Snapshot({}, [known, "torch.new:Schedule"], ["FORWARD", "SIDEWAYS"], ["torch.new"])
    assert unknown("torch", snapshot) == [
        "unknown schedule: torch.new:Schedule",
        "unknown action: SIDEWAYS",
        "unknown module: torch.new",
    ]


@pytest.mark.parametrize(
    ("supported", "version", "expected"),
    [
        ("2.8-2.15", "2.8.0", True),
        ("2.8-2.15", "2.15.3", True),
        ("2.8-2.15", "2.7.1", False),
        ("2.8-2.15", "2.16.0", False),
        ("0.14-0.19.8", "0.19.9", False),
        ("3.3.1", "3.3.1", True),
        ("3.3.1", "3.3.0", False),
        ("3.1, 3.3-3.4", "3.1.1", True),
        ("3.1, 3.3-3.4", "3.2.0", False),
    ],
)
def test_reads_the_supported_range_of_a_part(supported, version, expected):
    part = Part("Pipe", "pipe", supported, "pipe", "hooks", ())
    assert is_supported(part, Source("pipe", ("pipe",), ("pipe/",), oldest="0.1"), version) is expected


def test_a_part_without_a_range_is_an_error():
    part = Part("Pipe", "pipe", "all", "pipe", "hooks", ())
    with pytest.raises(ValueError, match="'all' is no range of versions"):
        is_supported(part, Source("pipe", ("pipe",), ("pipe/",), oldest="0.1"), "1.0")


@pytest.mark.parametrize(
    ("versions", "schedules", "silent"),
    [
        ("2.5-2.15", "ScheduleGPipe, schedules:Schedule1F1B", []),
        ("2.5", "ScheduleGPipe, Schedule1F1B", ["ScheduleGPipe", "Schedule1F1B"]),
        ("2.6, 2.9", "torch.distributed.pipelining.schedules:ScheduleGPipe", ["Schedule1F1B"]),
    ],
)
def test_finds_the_schedules_that_no_row_states(versions, schedules, silent):
    paths = [f"torch.distributed.pipelining.schedules:{name}" for name in ("ScheduleGPipe", "Schedule1F1B")]
    base = "torch.distributed.pipelining.schedules:PipelineScheduleSingle"
    table = Table([], {"2.6.0": Snapshot({}, [*paths, base], [], [])})
    rows = [
        {"framework": "torch.distributed.pipelining", "versions": versions, "schedule": schedules},
        {"framework": "DeepSpeed", "versions": "2.6", "schedule": "Schedule1F1B"},
    ]
    torch = next(source for source in SOURCES if source.name == "torch")
    expected = [f"torch 2.6.0: torch.distributed.pipelining.schedules:{name}" for name in silent]
    assert silent_cells(torch, table, rows) == expected


PIPE = """
class Root: ...
class Schedule(Root):
    def step(self, stage, microbatch): ...
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index with two releases of a package, which pip is configured to use."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip")
    folder = tmp_path / "index"
    folder.mkdir()
    with package_index.serve(folder) as served:
        monkeypatch.setattr(registry, "PYTHONS", ("3.12",))  # pip takes a second for each
        for name, value in package_index.pip_settings(served.url).items():
            monkeypatch.setenv(name, value)
        for version in ("1.0", "1.9", "1.10", "2.0rc1"):
            served.add_wheel("fakepipe", version, {"fakepipe/run.py": PIPE})
        yield served


@pytest.mark.usefixtures("index")
def test_lists_stable_releases_from_the_index_of_pip():
    assert [release.version for release in list_releases("fakepipe", "linux")] == ["1.0", "1.9", "1.10"]


@pytest.mark.usefixtures("index")
def test_downloads_a_release(tmp_path):
    archive = download(list_releases("fakepipe", "linux")[1], tmp_path / "into")
    assert archive.name == "fakepipe-1.9-py3-none-any.whl"
    assert read_archive(archive, ["fakepipe/"]) == {"fakepipe/run.py": PIPE}


@pytest.mark.usefixtures("index")
def test_a_missing_package_is_no_unreachable_index():
    with pytest.raises(RegistryError, match="No matching distribution found for fakeother") as caught:
        list_releases("fakeother", "linux")
    assert not isinstance(caught.value, UnreachableError)


@pytest.fixture
def fakepipe(index, tmp_path, monkeypatch):  # noqa: ARG001  # pip uses the index
    """Run a command for the package on the index, with a table of its own."""
    monkeypatch.setattr(
        command,
        "SOURCES",
        [
            Source(
                "fakepipe",
                ("fakepipe",),
                ("fakepipe/",),
                ("fakepipe/",),
                ("Root",),
                oldest="1.5",
                platform="linux",
            )
        ],
    )
    monkeypatch.setattr(command, "unknown", lambda *args: [])
    monkeypatch.setattr(Source, "points", property(lambda self: ["fakepipe.run:Schedule.step"]))
    return lambda *arguments: command.main([*arguments, "--table", str(tmp_path / "table")])


def test_a_table_that_has_all_releases_passes(fakepipe, capsys):
    assert fakepipe("update") == 0
    assert fakepipe("check") == 0
    assert capsys.readouterr().out.splitlines() == [
        "fakepipe 1.9: read",
        "fakepipe 1.10: read",
        "fakepipe: 2 releases, 2 in the table",
    ]


@pytest.mark.exhaustive
def test_a_new_release_is_named_with_what_it_changes(fakepipe, index, capsys):
    fakepipe("update")
    changed = PIPE.replace("microbatch", "chunk") + "class Other(Root): ...\n"
    index.add_wheel("fakepipe", "1.11", {"fakepipe/run.py": changed, "fakepipe/zigzag.py": ""})
    capsys.readouterr()
    assert fakepipe("check") == 1
    assert capsys.readouterr().out == textwrap.dedent("""\
        fakepipe: 3 releases, 2 in the table
        fakepipe 1.11 is not in the table
        fakepipe 1.11: fakepipe.run:Schedule.step: (self, stage, microbatch) -> (self, stage, chunk)
        fakepipe 1.11: new in schedules: fakepipe.run:Other
        fakepipe 1.11: new in modules: fakepipe.zigzag
        """)
    assert fakepipe("update") == 0
    assert fakepipe("check") == 0


@pytest.mark.exhaustive
def test_a_new_release_that_is_equal_to_the_one_before_is_no_error(fakepipe, index, capsys):
    fakepipe("update")
    index.add_wheel("fakepipe", "1.10.1", {"fakepipe/run.py": PIPE})
    capsys.readouterr()
    assert fakepipe("check") == 0
    assert "1.10.1 is not in the table, and equal to the release before it" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_newest_release_is_read_again(fakepipe, tmp_path, capsys):
    fakepipe("update")
    path = tmp_path / "table" / "fakepipe.json"
    path.write_text(path.read_text().replace("(self, stage, microbatch)", "(self)"))
    assert fakepipe("check") == 1
    assert "1.10: fakepipe.run:Schedule.step: (self) -> (self, stage, microbatch)" in capsys.readouterr().out
    assert fakepipe("check", "--all") == 1
    assert "1.9: fakepipe.run:Schedule.step: (self) ->" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_kept_sources_are_read_without_an_index(fakepipe, tmp_path, monkeypatch):
    kept = str(tmp_path / "kept")
    assert fakepipe("update", "--sources", kept) == 0
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    assert fakepipe("check", "--all", "--offline", "--sources", kept) == 0


def test_skips_when_the_index_does_not_answer(fakepipe, monkeypatch, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/")
        assert fakepipe("check") == 0
    assert capsys.readouterr().out.startswith("registry not reachable: skipped (")


def test_a_misspelled_source_is_an_error(capsys):
    with pytest.raises(SystemExit):
        command.main(["check", "pytorch"])
    assert "unknown source: pytorch" in capsys.readouterr().err


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_source_is_on_an_index_or_pinned(source):
    assert bool(source.oldest) != bool(source.commit and source.repository)
