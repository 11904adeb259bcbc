"""New files: for their owner alone, and no link leads them elsewhere."""

import os
import re
import stat

import pytest

from drawing import timeline_from_text
from stagescope.api import write
from stagescope.cli.json_file import write_json
from stagescope.exporters import new_files
from stagescope.exporters.new_files import create, make_directory, new_file
from stagescope.record.file import FrameFile
from stagescope.record.run_directory import MARKER, Launch, enter
from stagescope.vocabulary.errors import OutputError, UsageError
from stagescope.vocabulary.file_modes import MODE_VARIABLE

TIMELINE = timeline_from_text("F0 B0")
FORMATS = ("svg", "html", "json", "pftrace", "csv", "parquet")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def write_every_file(folder):
    """Write every format, a JSON file, a recording and the marker of a run; return all files and directories."""
    for suffix in FORMATS:
        write(TIMELINE, folder / f"out.{suffix}")
    write_json({}, folder / "report.json")
    make_directory(folder / "made" / "inside")
    FrameFile(str(folder / "recordings"), ["rank0.sscope"]).close()
    enter(folder / "run", Launch([]))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == len(FORMATS) + 3
    return files, [path for path in folder.rglob("*") if path.is_dir()]


@pytest.mark.parametrize(
    ("wanted", "umask", "modes"),
    [
        ("", 0o022, (0o600, 0o700)),
        ("640", 0o022, (0o640, 0o750)),
        ("0664", 0o002, (0o664, 0o775)),
        ("664", 0o077, (0o600, 0o700)),
    ],
)
def test_files_are_for_their_owner_unless_the_environment_names_others(
    tmp_path, monkeypatch, wanted, umask, modes
):
    monkeypatch.setenv(MODE_VARIABLE, wanted)
    os.umask(umask)
    files, directories = write_every_file(tmp_path)
    assert {path.name: oct(mode(path)) for path in files if mode(path) != modes[0]} == {}
    assert {path.name: oct(mode(path)) for path in directories if mode(path) != modes[1]} == {}


@pytest.mark.parametrize("wanted", ["rw", "888", "1777", "200", "-600"])
def test_a_malformed_mode_is_an_error_of_exports_and_the_default_of_recordings(tmp_path, monkeypatch, wanted):
    monkeypatch.setenv(MODE_VARIABLE, wanted)
    with pytest.raises(UsageError, match=MODE_VARIABLE):
        write(TIMELINE, tmp_path / "out.svg")
    FrameFile(str(tmp_path), ["rank0.sscope"]).close()
    assert mode(tmp_path / "rank0.sscope") == 0o600
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_with_the_name_of_a_file_is_replaced_and_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("kept", encoding="utf-8")
    for name in ("out.svg", "out.json"):
        (tmp_path / name).symlink_to(target)
    write(TIMELINE, tmp_path / "out.svg", force=True)
    write_json({}, tmp_path / "out.json", force=True)
    assert target.read_text(encoding="utf-8") == "kept"
    assert not (tmp_path / "out.svg").is_symlink()


def test_a_link_with_the_temporary_name_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(new_files.secrets, "token_hex", lambda _bytes: "guessed")
    target = tmp_path / "target"
    (tmp_path / ".out.svg.guessed.unfinished").symlink_to(target)
    with pytest.raises(OutputError, match="File exists"):
        write(TIMELINE, tmp_path / "out.svg")
    assert not target.exists()


def test_temporary_names_cannot_be_predicted(tmp_path):
    with new_file(tmp_path / "a", force=False) as one, new_file(tmp_path / "a", force=False) as other:
        assert one.name != other.name
        assert re.fullmatch(r"\.a\.[0-9a-f]{16}\.unfinished", one.name)


def test_the_marker_of_a_run_is_not_followed_to_another_file(tmp_path):
    target = tmp_path / "target"
    target.write_text("{}\n", encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MARKER).symlink_to(target)
    with pytest.raises(OutputError, match="cannot write"):
        enter(tmp_path / "run", Launch([], join=True))
    assert target.read_text(encoding="utf-8") == "{}\n"


def test_the_longest_file_name_is_possible(tmp_path):
    path = tmp_path / ("層" * 83 + ".svg")
    write(TIMELINE, path)
    assert path.exists()


def test_creating_a_file_follows_no_link(tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        create(tmp_path / "log")
