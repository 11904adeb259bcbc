"""Finding the files of a call and their readers."""

import errno
import gzip
import json
import os
import socket
import tarfile
import zipfile

import pytest

from stagescope.api import READERS, read
from stagescope.ingest.discover import find_inputs
from stagescope.ingest.reader import Reader
from stagescope.ingest.registry import Registry
from stagescope.ingest.streams import open_stream
from stagescope.model import empty_timeline
from stagescope.vocabulary.errors import InputError


def reader_of(name: str, magic: bytes, *patterns: str) -> Reader:
    return Reader(name, patterns, "", lambda _, head: head.startswith(magic), lambda *_: empty_timeline())


RED = reader_of("red", b"red", "*.r", "*.rec")
BLUE = reader_of("blue", b"blue", "*.b", "log.*")
REGISTRY = Registry((RED, BLUE), ())


@pytest.fixture
def folder(tmp_path):
    for name, content in {"a.r": b"red 1", "below/b.b": b"blue 1", "below/deep/c.rec": b"red 2"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def found(*paths) -> dict[str, list[str]]:
    files = find_inputs(paths, REGISTRY).files
    return {reader.name: [file.name for file in files[reader]] for reader in files}


def test_a_directory_is_searched_recursively(folder):
    assert found(folder) == {"red": ["a.r", "c.rec"], "blue": ["b.b"]}


def test_files_are_in_natural_order(tmp_path):
    for name in ("rank10.r", "rank9.r", "rank1.r", "node2-rank7.r", "node10-rank0.r"):
        (tmp_path / name).write_bytes(b"red")
    assert found(tmp_path) == {"red": ["node2-rank7.r", "node10-rank0.r", "rank1.r", "rank9.r", "rank10.r"]}


def test_patterns_ignore_case(tmp_path):
    for name in ("LOG.10", "LOG.9", "catalog.1"):
        (tmp_path / name).write_bytes(b"blue")
    assert found(tmp_path) == {"blue": ["LOG.9", "LOG.10"]}


def test_linked_directories_are_searched_once(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.r").write_bytes(b"red 3")
    (folder / "below" / "link").symlink_to(elsewhere)
    (folder / "below" / "again").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(folder)
    assert found(folder) == {"red": ["a.r", "far.r", "c.rec"], "blue": ["b.b"]}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs the proc file system of Linux")
@pytest.mark.parametrize("path", ["/proc", "/proc/self", "/proc/self/fd"])
def test_directories_of_the_kernel_are_refused(path):
    with pytest.raises(InputError) as error:
        find_inputs([path], REGISTRY)
    assert str(error.value) == f"{path} is not searched: its files are made up by the kernel (proc)"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs the proc file system of Linux")
def test_links_to_directories_of_the_kernel_are_not_followed(folder):
    (folder / "below" / "link").symlink_to("/proc")
    assert found(folder) == {"red": ["a.r", "c.rec"], "blue": ["b.b"]}


def test_compressed_files_are_recognized_by_their_decompressed_content(tmp_path):
    (tmp_path / "packed.r").write_bytes(gzip.compress(b"red"))
    assert found(tmp_path) == {"red": ["packed.r"]}


def test_files_are_recognized_by_content_and_not_by_suffix(tmp_path):
    (tmp_path / "misnamed.b").write_bytes(b"red")
    (tmp_path / "without_suffix").write_bytes(b"blue")
    assert found(tmp_path / "misnamed.b", tmp_path / "without_suffix") == {
        "red": ["misnamed.b"], "blue": ["without_suffix"],
    }  # fmt: skip


def test_a_file_reached_twice_counts_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert found("a.r", folder, folder / "below/../a.r") == {"red": ["a.r", "c.rec"], "blue": ["b.b"]}
    assert find_inputs(["a.r", folder], REGISTRY).file_count == 3


def test_explicitly_named_files_are_recorded(folder):
    inputs = find_inputs([folder / "below", folder / "a.r"], REGISTRY)
    assert inputs.named == {folder / "a.r"}


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(InputError) as error:
        find_inputs([tmp_path / "nothing"], REGISTRY)
    assert str(error.value) == f"no such file or directory: {tmp_path / 'nothing'}"


def test_a_directory_with_nothing_to_read_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("red")
    with pytest.raises(InputError) as error:
        find_inputs([tmp_path], REGISTRY)
    assert str(error.value) == f"no readable file in {tmp_path}: none is in a supported format (red, blue)"


def test_an_unrecognized_named_file_is_an_error(tmp_path):
    (tmp_path / "x.r").write_bytes(b"green")
    with pytest.raises(InputError) as error:
        find_inputs([tmp_path / "x.r"], REGISTRY)
    assert str(error.value) == (
        f"{tmp_path / 'x.r'} is not a recording or trace in a supported format (it begins with b'green')"
    )
    assert error.value.hint == "supported formats: red, blue"


def test_the_error_for_a_directory_with_only_a_damaged_file_names_it(tmp_path):
    (tmp_path / "x.r").touch()
    with pytest.raises(InputError, match=r"x\.r is not a recording .* \(it is empty\)"):
        find_inputs([tmp_path], REGISTRY)


def test_an_unrecognized_file_next_to_good_ones_is_skipped_with_a_warning(folder):
    (folder / "x.r").write_bytes(b"green")
    inputs = find_inputs([folder], REGISTRY)
    assert inputs.file_count == 3
    [note] = inputs.diagnostics
    assert (note.severity, note.code) == ("warning", "input.not_read")
    assert note.message.startswith(f"not read: {folder / 'x.r'} is not a recording")


def test_a_directory_with_a_matching_name_is_not_a_file(tmp_path):
    (tmp_path / "odd.r").mkdir()
    (tmp_path / "odd.r" / "a.b").write_bytes(b"blue")
    assert found(tmp_path) == {"blue": ["a.b"]}


def test_pipes_sockets_and_devices_are_errors_and_skipped_in_a_directory(folder, monkeypatch):
    monkeypatch.chdir(folder)  # the path of a socket may have 107 characters
    os.mkfifo("pipe.r")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.r")
    os.symlink("/dev/zero", "zero.r")
    os.symlink("/nowhere", "broken.r")
    expected = {
        "pipe.r": "cannot read pipe.r: it is a pipe, not a file",
        "socket.r": "cannot read socket.r: it is a socket, not a file",
        "zero.r": "cannot read zero.r: it is a device, not a file",
        "broken.r": "no such file or directory: broken.r",
    }
    for name, message in expected.items():
        with pytest.raises(InputError) as error:
            find_inputs([name], REGISTRY)
        assert str(error.value) == message
    inputs = find_inputs(["."], REGISTRY)
    assert inputs.file_count == 3
    assert {note.message.replace("not read: ", "") for note in inputs.diagnostics} == set(expected.values())


def test_a_file_that_is_replaced_by_a_pipe_while_it_is_opened_is_an_error(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.r")
    regular = os.stat(__file__)
    monkeypatch.setattr(type(tmp_path), "stat", lambda *_, **__: regular)
    with pytest.raises(InputError, match="it is a pipe"):
        open_stream(tmp_path / "a.r")


@pytest.mark.parametrize("name", ["run.tar", "run.tar.gz", "run.zip"])
def test_archives_are_refused_and_never_unpacked(tmp_path, name):
    inner = tmp_path / "rank-00000.sscope"
    inner.write_bytes(b"content")
    folder = tmp_path / "folder"
    folder.mkdir()
    if name.endswith(".zip"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.write(inner, "../outside.sscope")
    else:
        with tarfile.open(folder / name, "w:gz" if name.endswith(".gz") else "w") as archive:
            archive.add(inner, "../outside.sscope")
    with pytest.raises(InputError, match="is not a recording or trace in a supported format"):
        find_inputs([folder / name], Registry(READERS, ()))
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["folder", name, inner.name])


def test_a_name_that_is_not_utf_8_is_an_error_and_skipped_in_a_directory(folder):
    odd = folder / os.fsdecode(b"\xff.r")
    odd.write_bytes(b"red")
    expected = f"cannot read {folder}/\ufffd.r: its name is not valid UTF-8"
    with pytest.raises(InputError) as error:
        find_inputs([odd], REGISTRY)
    assert str(error.value) == expected
    assert [row.message for row in find_inputs([folder], REGISTRY).diagnostics] == [f"not read: {expected}"]


def test_an_unreadable_file_is_an_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "a.r").touch()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError) as error:
        find_inputs([tmp_path / "a.r"], REGISTRY)
    assert str(error.value) == f"cannot read {tmp_path / 'a.r'}: Permission denied"


def by_content(tmp_path, **files):
    """Write traces of forward and backward under these names, with their argument as prefix of the content."""
    event = {"ph": "X", "name": "forward_0", "ts": 0, "dur": 1, "pid": 0, "tid": 0}
    for name, prefix in files.items():
        path = tmp_path / "below" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(prefix + json.dumps([event]))
    return find_inputs([tmp_path], Registry(READERS, ()))


def test_traces_are_found_by_content_whatever_their_name(tmp_path):
    inputs = by_content(tmp_path, megascan_pp="", config='{"a": 1}', notes="no json")
    assert {reader.name: [path.name for path in files] for reader, files in inputs.files.items()} == {
        "chrome": ["megascan_pp.json"]
    }
    assert inputs.diagnostics == ()


def test_a_trace_with_another_name_next_to_usual_ones_is_stated_and_not_merged(tmp_path):
    inputs = by_content(tmp_path, trace_0="", backup="", config='{"a": 1}')
    (files,) = inputs.files.values()
    assert [path.name for path in files] == ["trace_0.json"]
    (note,) = inputs.diagnostics
    assert (note.severity, note.code, note.count) == ("info", "input.not_read", 1)
    assert "backup.json" in note.message


def test_a_damaged_compressed_file_is_an_error_that_names_the_damage(folder):
    (folder / "x.r").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 20)
    [note] = find_inputs([folder], REGISTRY).diagnostics
    assert (note.severity, note.code, note.source) == ("error", "file.unreadable", str(folder / "x.r"))
    assert "the gzip data are damaged" in note.message


@pytest.mark.parametrize(
    "address", ["s3://bucket/run", "gs://bucket/run.sscope", "https://127.0.0.1/run.sscope"]
)
def test_the_address_of_an_object_store_is_no_path(address):
    with pytest.raises(InputError, match="no such file or directory"):
        read(address)
