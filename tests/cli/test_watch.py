"""`stagescope watch`: what it prints about a planted training and a real one, and whom it notifies."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from children import clean_environment, recording_command
from pipeline_recordings import planted_training, write_training
from recordings import span_record, step_record, write_recording
from stagescope import api
from stagescope.cli import main
from stagescope.cli.watch import EXIT_ALARM
from stagescope.cli.watch_output import View
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError, UsageError

TRAINING = Path(__file__).parents[1] / "slowing_training.py"
STEPS, SLOW_STEPS, SLOW_RANK = 130, range(80, 110), 2


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recordings")
    write_training(directory, planted_training(STEPS, SLOW_RANK, SLOW_STEPS, 1.3))
    return directory


def events(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_rank_that_becomes_slower_is_named_with_its_first_step_and_the_alarm_ends(recordings, capsys):
    assert main(["watch", str(recordings)]) == EXIT_ALARM
    out = capsys.readouterr().out
    assert f"alarm 1: Rank {SLOW_RANK} is 30 % slower (its actions take " in out
    assert f" since step {SLOW_STEPS[0]}; found at step " in out
    assert "alarm 2" not in out
    assert out.rstrip().endswith("The training is over: ranks 0-3 ended.")


def test_json_lines_have_every_step_with_the_values_of_the_report(recordings, capsys):
    assert main(["watch", str(recordings), "--json"]) == EXIT_ALARM
    found = events(capsys)
    steps = [event for event in found if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(STEPS))
    report = api.analyze(api.read(recordings))
    bubbles = report.steps["bubble_fraction"].to_list()
    assert [event["values"]["bubble"] for event in steps] == pytest.approx(bubbles)
    (alarm,) = [event for event in found if event["event"] == "alarm"]  # began and ended in one update
    assert alarm["changes"][0] | {"size": None, "relative_size": None, "usual_ns": None, "now_ns": None} == {
        "kind": "rank", "part": None, "rank": SLOW_RANK, "peer": None, "direction": None, "step": SLOW_STEPS[0],
        "size": None, "relative_size": None, "usual_ns": None, "now_ns": None,
    }  # fmt: skip


def test_a_condition_is_an_alarm_and_without_any_the_exit_code_is_0(recordings, capsys):
    quiet = ["watch", str(recordings), "--least-change", "0"]
    assert main(quiet) == 0
    assert "alarm" not in capsys.readouterr().out
    assert main([*quiet, "--alert", "bubble>1% for 20 steps", "--until-alarm"]) == EXIT_ALARM
    assert "alarm 1: bubble>1% for 20 steps: true since step 0; bubble was " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--alert", "bubble"), "--alert 'bubble': expected a quantity"),
        (("--alert", "bubbel>0.3 for 2 steps"), "unknown quantity 'bubbel'; did you mean 'bubble'?"),
        (("--alert", "bubble>0.3 for 0 steps"), "expected a quantity"),
        (("--alert", "iteration>0.3"), "expected a number with"),
        (("--on-alarm", "no-such-program --now"), "there is no program 'no-such-program'"),
        (("--on-alarm", "'"), "No closing quotation"),
        (("--webhook", "file:///etc/passwd"), "expected an address that begins with http:// or https://"),
        (("--webhook", "http://host:port/"), "expected an address that begins with http:// or https://"),
        (("--webhook", "http://[::1"), "expected an address that begins with http:// or https://"),
        (("--webhook", "http://host/\x01"), "expected an address that begins with http:// or https://"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, message, recordings, capsys):
    assert main(["watch", str(recordings), *words]) in {1, 2}
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_command_gets_each_alarm_as_json(recordings, tmp_path, capsys):
    out = tmp_path / "alarm.json"
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
    notify = f'"{sys.executable}" -c "{code}" "{out}"'
    assert main(["watch", str(recordings), "--on-alarm", notify]) == EXIT_ALARM
    assert out.read_text().endswith("}\n")
    (alarm,) = map(json.loads, out.read_text().splitlines())
    assert alarm["changes"][0]["rank"] == SLOW_RANK
    failing = f'"{sys.executable}" -c "raise SystemExit(4)"'
    assert main(["watch", str(recordings), "--on-alarm", failing]) == EXIT_ALARM
    assert "exited with 4" in capsys.readouterr().err


def test_a_webhook_gets_each_alarm_signed(recordings, monkeypatch, capsys):
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("STAGESCOPE_WEBHOOK_SECRET", "planted")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/alarms"
        assert main(["watch", str(recordings), "--webhook", url]) == EXIT_ALARM
    ((headers, body),) = received
    assert json.loads(body)["changes"][0]["rank"] == SLOW_RANK
    digest = hmac.new(b"planted", body, hashlib.sha256).hexdigest()
    assert headers["X-Stagescope-Signature"] == f"sha256={digest}"
    assert main(["watch", str(recordings), "--webhook", url]) == EXIT_ALARM  # nothing listens there any more
    assert "--webhook failed" in capsys.readouterr().err


def test_a_directory_that_does_not_exist_is_an_error_and_an_empty_one_may_fill(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--seconds", "0.3", "--interval", "0.1"]) == 0
    assert capsys.readouterr().err == f"stagescope: waiting for recordings in {tmp_path}\n"


def test_a_watcher_measures_what_was_added_between_two_updates(tmp_path):
    training = planted_training(40, SLOW_RANK, (), 1)
    paths = write_training(tmp_path, training)
    whole = [path.read_bytes() for path in paths]
    for path, data in zip(paths, whole, strict=True):
        path.write_bytes(data[: len(data) // 2])
    watcher = api.Watcher(tmp_path)
    first = watcher.update()
    for path, data in zip(paths, whole, strict=True):
        path.write_bytes(data)
    second = watcher.update()
    steps = [values.step for update in (first, second) for values in update.steps]
    assert steps == list(range(40))
    assert (second.skipped, second.is_over) == (0, True)
    with pytest.raises(UsageError):
        api.Watcher(tmp_path, alerts=["bubble"])


def test_the_view_of_a_terminal_fits_its_width_and_shows_steps_causes_ranks_and_alarms(
    recordings, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "60")
    watcher = api.Watcher(recordings, alerts=["bubble>40%"])
    shown = []
    View(watcher, shown.append).show(watcher.update())
    (text,) = shown
    lines = text.split("\n")
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("step 129, iteration unknown, bubble 5")
    (bars,) = (line for line in lines if line.startswith("iterations "))
    assert set(bars.removeprefix("iterations ")) == {"▁", "█"}
    assert "rank  condition  step  last\n   0  ended       129  exit\n" in text
    assert "alarm 2: Rank 2 is 30 % slower" in text


def test_a_training_that_hangs_is_an_alarm_with_the_rank_that_holds_it_up(tmp_path, capsys):
    training = planted_training(20, SLOW_RANK, (), 1)
    write_training(tmp_path, training, end=False, boot="elsewhere")  # its last span ended long ago
    assert main(["watch", str(tmp_path), "--until-alarm", "--json"]) == EXIT_ALARM
    (hang,) = [event for event in events(capsys) if event["event"] == "stopped"]
    assert hang["culprits"] == [0, 1, 2, 3]
    assert "nothing for" in hang["sentences"][0]
    assert main(["watch", str(tmp_path), "--until-alarm"]) == EXIT_ALARM
    assert "Rank 0 holds up the training: it has recorded nothing for" in capsys.readouterr().out


def test_a_rank_that_was_killed_is_an_alarm(tmp_path, capsys):
    training = planted_training(20, SLOW_RANK, (), 1)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with subprocess.Popen(["true"]) as process:
        process.wait()
    paths = write_training(tmp_path, training)
    killed = write_training(tmp_path / "killed", training, end=False, boot=boot, pid=process.pid)
    killed[1].rename(paths[1])
    os.utime(paths[1], (0, 0))
    for path in killed[::2] + killed[3:]:
        path.unlink()
    assert main(["watch", str(tmp_path)]) == EXIT_ALARM
    out = capsys.readouterr().out
    assert out.endswith("The training is over: rank 1 was killed or crashed, ranks 0 and 2-3 ended.\n")
    assert "step 19" in out


def test_damage_and_missing_ranks_are_printed_once_and_in_json(tmp_path, capsys):
    paths = write_training(tmp_path, planted_training(20, SLOW_RANK, (), 1))
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    paths[1].write_bytes(data)
    paths[3].unlink()
    assert main(["watch", str(tmp_path), "--least-change", "0"]) == 0
    out = capsys.readouterr().out
    assert out.count("damaged bytes contain no valid frame") == 1
    assert "rank 3" in out
    assert main(["watch", str(tmp_path), "--least-change", "0", "--json"]) == 0
    codes = [event["code"] for event in events(capsys) if event["event"] == "diagnostic"]
    assert "frames.damaged" in codes
    assert len(codes) == len(set(codes))


def test_steps_without_actions_are_counted_and_not_shown_as_measured(tmp_path, capsys):
    for rank in range(2):
        spans = [span_record("send", 10 * step, 10 * step + 5, step=step) for step in range(8)]
        spans += [step_record(step, 10 * step, 10 * step + 9) for step in range(8)]
        write_recording(tmp_path / f"rank-{rank:05}.sscope", spans, rank=rank, world_size=2)
    assert main(["watch", str(tmp_path)]) == 0
    assert "8 steps could not be measured\n" in capsys.readouterr().out


def test_a_recording_that_becomes_shorter_is_an_error(tmp_path):
    paths = write_training(tmp_path, planted_training(10, SLOW_RANK, (), 1), end=False)
    watcher = api.Watcher(tmp_path)
    watcher.update()
    paths[0].write_bytes(paths[0].read_bytes()[:500])
    with pytest.raises(InputError, match="shorter"):
        watcher.update()


def end_by(path, **facts):
    """Add the end that a process writes."""
    data = path.read_bytes()
    number = sum(isinstance(item, fmt.Frame) for item in fmt.scan_frames(data))
    spans = len(read_contents(data).spans)
    end = json.dumps({"spans": spans, "dropped_spans": 0, **facts}).encode()
    path.write_bytes(data + fmt.encode_frame(number, fmt.END, end))


def test_a_training_that_an_exception_ended_is_an_alarm(tmp_path, capsys):
    training = [[own[:2] for own in steps] for steps in planted_training(3, SLOW_RANK, (), 1)]
    for path in write_training(tmp_path, training, end=False):
        end_by(path, reason="exception", exception="RuntimeError")
    assert main(["watch", str(tmp_path), "--json"]) == EXIT_ALARM
    *steps, stopped = events(capsys)
    assert [event["step"] for event in steps if event["event"] == "step"] == [
        0,
        1,
    ]  # and not the one of the crash
    assert stopped["sentences"][0] == "The training is over: ranks 0-3 ended by an exception."


def test_a_training_that_is_started_again_begins_a_new_history(tmp_path):
    write_training(tmp_path, planted_training(30, SLOW_RANK, (), 1), pid=1, process_start_ns=1, end=False)
    watcher = api.Watcher(tmp_path)
    first = watcher.update()
    again = planted_training(12, SLOW_RANK, (), 1)
    write_training(tmp_path / "again", again, pid=2, process_start_ns=2, end=False)
    second = watcher.update()
    assert first.steps[-1].step == 28
    assert [values.step for values in second.steps] == list(range(11))


@pytest.mark.exhaustive
def test_a_real_training_of_which_a_rank_becomes_slower(tmp_path):
    pytest.importorskip("torch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [*recording_command(tmp_path / "recordings"), *torchrun, str(TRAINING), "80", "130", "180"]
    (tmp_path / "recordings").mkdir()
    watch = [sys.executable, "-m", "stagescope", "watch", str(tmp_path / "recordings"), "--json"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=clean_environment(), **silent) as training:
        done = subprocess.run(watch, capture_output=True, text=True, timeout=200, check=False)
        assert training.wait(60) == 0
    assert done.returncode == EXIT_ALARM, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    alarms = [event for event in found if event["event"] == "alarm"]
    first = next(alarm for alarm in alarms if alarm["changes"][0]["rank"] == 2)
    assert abs(first["changes"][0]["step"] - 80) <= 2
    assert first["found_step"] <= 95
    assert any(alarm["end_step"] for alarm in alarms)
