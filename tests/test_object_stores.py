"""Runs on object stores: read by every command from a real S3 server on this machine (moto).

What cannot be read is one sentence, and nothing that is shown or stored has secrets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import count

import pytest

import stagescope as ss
from places import DATA
from s3_server import BUCKET, SECRET, client, s3_server, upload
from stagescope.api import save_page, view_run
from stagescope.cli import main
from stagescope.storage import mirror as mirrors
from stagescope.storage import object_store
from stagescope.viewer.tiles import stored

RECORDINGS = DATA / "recordings" / "v1"
NUMBERS = count()


@pytest.fixture(scope="module")
def server():
    with s3_server() as (_, variables):
        client(variables).create_bucket(Bucket=BUCKET)
        yield variables


@pytest.fixture
def s3(server, monkeypatch, tmp_path):
    """Return a client of the server that the commands of a test use, with a cache of its own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mirrors, "FRESH_S", 0.0)  # as in a process of its own
    mirrors._mirrors.clear()
    forget_connections()
    yield client(server)
    mirrors._mirrors.clear()
    forget_connections()


def forget_connections():
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()


@pytest.fixture
def recordings(s3):
    prefix = f"runs/{next(NUMBERS)}/recordings"
    upload(s3, RECORDINGS, prefix)
    return f"s3://{BUCKET}/{prefix}"


def fetched(tmp_path):
    return sorted(
        file.name for file in (tmp_path / "cache").rglob("*") if file.is_file() and file.parent.name != "lock"
    )


def printed(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["report", "--json", "-"], ["clocks", "--json"], ["what-if", "--balanced"], ["show"]],
    ids=lambda words: words[0],
)
def test_commands_print_the_same_as_for_files_of_this_machine(words, recordings, capsys):
    here = printed(capsys, words[0], RECORDINGS, *words[1:])
    assert printed(capsys, words[0], recordings, *words[1:]) == here


def test_runs_are_compared_queried_and_exported(recordings, tmp_path, capsys):
    rows = printed(capsys, "sql", recordings, "select count(*) as n from spans")
    assert "378" in rows
    assert json.loads(printed(capsys, "compare", recordings, RECORDINGS, "--json", "-"))
    for source, name in ((recordings, "a.csv"), (RECORDINGS, "b.csv")):
        printed(capsys, "export", source, "-o", tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_sources_are_named_by_their_addresses(recordings, tmp_path):
    timeline = ss.read(recordings)
    assert timeline.ranks["source"][0] == f"{recordings}/rank00000-333.sscope"
    ss.export(timeline, tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert recordings in page
    assert str(tmp_path) not in page


def test_a_single_recording_is_partial_and_named_by_its_address(recordings, tmp_path, capsys):
    assert main(["report", f"{recordings}/rank00001-334.sscope"]) == 1
    shown = capsys.readouterr()
    assert "partial data" in shown.err
    assert str(tmp_path) not in shown.out + shown.err


def test_damage_is_named_with_the_address(s3, recordings, tmp_path, capsys):
    key = recordings.removeprefix(f"s3://{BUCKET}/") + "/rank00002-336.sscope"
    s3.put_object(Bucket=BUCKET, Key=key, Body=(RECORDINGS / "rank00002-336.sscope").read_bytes()[:-700])
    for words in (["report", recordings], ["report", recordings, "--json", "-"]):
        text = printed(capsys, *words)
        assert f"{recordings}/rank00002-336.sscope" in text
        assert str(tmp_path) not in text


def test_an_object_of_an_unknown_format_is_refused_by_its_content(s3, capsys):
    s3.put_object(Bucket=BUCKET, Key="odd/rank0.sscope", Body=b"hello")
    assert main(["report", f"s3://{BUCKET}/odd/rank0.sscope"]) == 1
    assert f"s3://{BUCKET}/odd/rank0.sscope" in capsys.readouterr().err


def test_limits_hold(recordings, capsys):
    assert main(["report", recordings, "--limit", "spans=10"]) == 1
    assert "--limit spans" in capsys.readouterr().err


def test_a_trace_is_inspected_and_mapped(s3, capsys):
    events = [
        {
            "ph": "X",
            "name": name,
            "pid": rank,
            "tid": 0,
            "ts": 10 * place + rank,
            "dur": 5,
            "args": {"mb": place % 4},
        }
        for rank in range(2)
        for place, name in enumerate(["forward"] * 4 + ["backward"] * 4)
    ]
    s3.put_object(Bucket=BUCKET, Key="odd name/x#1.json", Body=json.dumps({"traceEvents": events}).encode())
    address = f"s3://{BUCKET}/odd name/x#1.json"
    assert main(["inspect", address]) == 0
    assert f"stagescope report '{address}'" in capsys.readouterr().out
    assert main(["show", address, "--map", "microbatch=args.mb", "--map", "stage=pid"]) in (0, 1)
    assert "2 ranks" in capsys.readouterr().out


def test_files_are_fetched_once_and_again_when_they_change(s3, recordings, tmp_path, monkeypatch):
    copied = []
    copy = object_store.ObjectStore.copy
    monkeypatch.setattr(
        object_store.ObjectStore,
        "copy",
        lambda self, remote, *rest: (
            copied.append(remote.path.rpartition("/")[2]) or copy(self, remote, *rest)
        ),
    )
    first = ss.read(recordings)
    assert len(copied) == len(list(RECORDINGS.iterdir()))
    assert ss.read(recordings).spans.equals(first.spans)
    assert len(copied) == len(list(RECORDINGS.iterdir()))
    key = recordings.removeprefix(f"s3://{BUCKET}/")
    s3.put_object(Bucket=BUCKET, Key=f"{key}/rank00003-338.sscope", Body=b"")
    s3.delete_object(Bucket=BUCKET, Key=f"{key}/rank00000-333.sscope")
    copied.clear()
    assert 0 not in ss.read(recordings).ranks["rank"]
    assert copied == ["rank00003-338.sscope"]
    assert "rank00000-333.sscope" not in fetched(tmp_path)


def test_a_run_is_stored_and_its_manifest_names_the_addresses(recordings, tmp_path, capsys):
    words = ["store", recordings, "-o", str(tmp_path / "run.stagescope"), "--workers", "2"]
    assert main(words) == 0
    manifest = json.loads((tmp_path / "run.stagescope" / "stored-run.json").read_text())
    assert manifest["sources"][0]["path"] == f"{recordings}/rank00000-333.sscope"
    capsys.readouterr()
    assert main(words) == 0
    assert "0 files written" in capsys.readouterr().out
    assert printed(capsys, "show", tmp_path / "run.stagescope") == printed(capsys, "show", RECORDINGS)
    shown = b"".join(file.read_bytes() for file in (tmp_path / "run.stagescope").rglob("*") if file.is_file())
    assert str(tmp_path).encode() not in shown
    assert SECRET.encode() not in shown


def test_of_a_stored_run_only_what_is_used_is_fetched(s3, tmp_path, capsys):
    assert main(["store", str(RECORDINGS), "-o", str(tmp_path / "run")]) == 0
    upload(s3, tmp_path / "run", "stored/run")
    capsys.readouterr()
    here = printed(capsys, "report", tmp_path / "run", "--json", "-")
    assert printed(capsys, "report", f"s3://{BUCKET}/stored/run", "--json", "-") == here
    assert "part.parquet" not in fetched(tmp_path)
    here = printed(capsys, "show", tmp_path / "run", "--steps", "1:2")
    assert printed(capsys, "show", f"s3://{BUCKET}/stored/run", "--steps", "1:2") == here
    assert "part.parquet" in fetched(tmp_path)


def test_a_damaged_file_of_a_stored_run_is_counted(s3, tmp_path, capsys):
    assert main(["store", str(RECORDINGS), "-o", str(tmp_path / "run"), "--no-analysis"]) == 0
    (part,) = (tmp_path / "run").glob("steps/*/*/part.parquet")
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    upload(s3, tmp_path / "run", "damaged/run")
    assert main(["report", f"s3://{BUCKET}/damaged/run"]) == 1
    assert "has changed since it was stored" in capsys.readouterr().out


def test_the_page_shows_a_run_under_its_address(recordings):
    with ss.open(recordings, browser=False) as viewer:
        assert recordings in viewer.meta["document_title"]


def test_the_page_shows_a_large_stored_run(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "LARGE", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "levels"))
    ss.store(RECORDINGS, out=tmp_path / "run.stagescope")
    upload(s3, tmp_path / "run.stagescope", "large.stagescope")
    view = view_run(f"s3://{BUCKET}/large.stagescope")
    assert view.meta["span_count"] == 378
    assert {"verdict", "ledger", "rank_heat"} <= view.sections.keys()


def test_the_page_beside_a_stored_run_is_not_fetched(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "levels"))
    ss.store(RECORDINGS, out=tmp_path / "run.stagescope")
    save_page(tmp_path / "run.stagescope")
    upload(s3, tmp_path / "run.stagescope", "prepared.stagescope")
    assert printed(capsys, "report", f"s3://{BUCKET}/prepared.stagescope")
    assert view_run(f"s3://{BUCKET}/prepared.stagescope").meta["span_count"] == 378
    assert "page.json" not in fetched(tmp_path)


def one_sentence(capsys, *words):
    assert main([str(word) for word in words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert SECRET not in shown.err
    assert "Traceback" not in shown.err
    (line, *hint) = shown.err.splitlines()
    assert line.startswith("stagescope: ")
    assert len(hint) <= 1
    return shown.err


@pytest.mark.usefixtures("s3")
def test_missing_objects_and_buckets_are_named(capsys):
    for address in (f"s3://{BUCKET}/none", "s3://no-such-bucket/runs"):
        assert f"no such object, prefix or bucket: {address}" in one_sentence(capsys, "report", address)


def test_missing_credentials_are_named_with_where_they_belong(recordings, capsys, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no usable credentials were found" in one_sentence(capsys, "report", recordings)
    monkeypatch.setenv("AWS_PROFILE", "missing")
    forget_connections()
    assert "AWS_PROFILE" in one_sentence(capsys, "report", recordings)


def test_denied_access_is_named(recordings, capsys, monkeypatch):
    def deny(*_, **__):
        raise PermissionError(SECRET)

    monkeypatch.setattr("s3fs.S3FileSystem.find", deny)
    assert "access was denied" in one_sentence(capsys, "report", recordings)


def test_a_server_that_is_gone_is_named(recordings, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert f"{recordings} cannot be read: endpoint connection error" in one_sentence(
        capsys, "report", recordings
    )


def test_a_network_that_goes_away_keeps_what_is_complete(recordings, tmp_path, capsys, monkeypatch):
    copy = object_store.ObjectStore.copy

    def gone(self, remote, *rest):
        if "rank00003" in remote.path:
            time.sleep(0.3)
            os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
            forget_connections()
            self = object_store.ObjectStore(self.address)
        copy(self, remote, *rest)

    monkeypatch.setattr(object_store.ObjectStore, "copy", gone)
    assert "the same command goes on" in one_sentence(capsys, "report", recordings)
    assert "rank00000-333.sscope" in fetched(tmp_path)
    assert "rank00003-338.sscope" not in fetched(tmp_path)


def test_an_object_that_changes_while_it_is_fetched_is_named(s3, tmp_path, capsys, monkeypatch):
    s3.put_object(Bucket=BUCKET, Key="changing/rank0.sscope", Body=b"x" * (20 << 20))
    copy = object_store.ObjectStore.copy

    def changing(self, remote, to, on_bytes):
        def change(size_bytes):
            s3.put_object(Bucket=BUCKET, Key="changing/rank0.sscope", Body=b"y" * (20 << 20))
            on_bytes(size_bytes)

        copy(self, remote, to, change)

    monkeypatch.setattr(object_store.ObjectStore, "copy", changing)
    monkeypatch.setattr(object_store, "BLOCK_BYTES", 5 << 20)
    text = one_sentence(capsys, "report", f"s3://{BUCKET}/changing/rank0.sscope")
    assert "changed while it was fetched" in text
    assert "rank0.sscope" not in fetched(tmp_path)


@pytest.mark.usefixtures("s3")
def test_secrets_in_addresses_are_in_no_message(capsys):
    for address in (
        f"s3://key:{SECRET}@bucket/x",
        f"s3://bucket/x?sig={SECRET}",
        f"https://u:{SECRET}@host/x",
    ):
        one_sentence(capsys, "report", address)
        one_sentence(capsys, "store", address, "-o", "x")
        one_sentence(capsys, "inspect", address)


def test_errors_have_no_cause_with_messages_of_libraries(recordings, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ss.InputError) as raised:
        ss.read(recordings)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def test_libraries_log_no_addresses(recordings):
    code = (
        "import logging, stagescope; "
        f"stagescope.read({recordings!r}); "
        f"[logging.getLogger(name).exception({SECRET!r}) for name in ('gcsfs', 's3fs', 'botocore.auth')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr == ""


def test_a_full_cache_is_named(recordings, capsys, monkeypatch):
    monkeypatch.setattr(mirrors.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 10}))
    assert "STAGESCOPE_CACHE=DIR" in one_sentence(capsys, "report", recordings)


def test_without_a_cache_everything_is_fetched_to_a_temporary_directory(
    recordings, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("STAGESCOPE_CACHE", "off")
    printed(capsys, "show", recordings)
    assert not (tmp_path / "cache").exists()


def test_a_missing_library_is_one_sentence_that_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(object_store, "find_spec", lambda name: None)
    assert "pip install 'stagescope[cloud]'" in one_sentence(capsys, "report", "s3://bucket/x")
    assert "gcsfs" in one_sentence(capsys, "report", "gs://bucket/x")


def test_clusters_without_a_shared_cache_are_refused(recordings, tmp_path, capsys, monkeypatch):
    words = ["store", recordings, "-o", str(tmp_path / "run"), "--cluster", "tcp://127.0.0.1:9"]
    monkeypatch.delenv("STAGESCOPE_CACHE")
    assert main(words) == 2
    assert "its workers do not have the cache of this machine" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_outputs_on_object_stores_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["store", str(RECORDINGS), "-o", "s3://bucket/run"]) == 1
    assert main(["export", str(RECORDINGS), "-o", "s3://bucket/run.csv"]) == 1
    assert capsys.readouterr().err.count("files are written on this machine") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["a/../../../rank0.sscope", "a/" + "r" * 300 + ".sscope", "a\\b.sscope"])
def test_names_that_would_lead_out_of_the_cache_are_refused(s3, key, capsys):
    prefix = f"names/{next(NUMBERS)}"
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=b"x")
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}/other.sscope", Body=b"x")
    assert "its name cannot be that of a file" in one_sentence(capsys, "report", f"s3://{BUCKET}/{prefix}")


def test_two_processes_at_once_fetch_once(recordings, tmp_path):
    done = [
        subprocess.Popen(
            [sys.executable, "-m", "stagescope", "show", recordings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in done]
    assert outputs[0] == outputs[1]
    assert [process.returncode for process in done] == [0, 0]
    (index,) = (tmp_path / "cache").rglob("index.jsonl")
    assert len(index.read_text().splitlines()) == len(list(RECORDINGS.iterdir()))


def test_ctrl_c_keeps_what_is_complete_and_nothing_else(recordings, tmp_path, monkeypatch):
    copy_all = mirrors.copy_all

    def interrupted(*arguments):
        for name in copy_all(*arguments):
            yield name
            raise KeyboardInterrupt

    monkeypatch.setattr(mirrors, "copy_all", interrupted)
    assert main(["show", recordings]) == 130
    assert not list((tmp_path / "cache").rglob("unfinished"))
    assert sum(name.endswith(".sscope") for name in fetched(tmp_path)) == 1
    monkeypatch.setattr(mirrors, "copy_all", copy_all)
    assert main(["show", recordings]) == 0


def test_reading_files_of_this_machine_imports_no_library_of_object_stores():
    code = (
        "import sys, stagescope; "
        f"stagescope.read({str(RECORDINGS)!r}); "
        "print([name for name in ('fsspec', 's3fs', 'botocore', 'filelock') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"
