"""``stagescope receive``: what it prints, and that Ctrl-C leaves a complete file."""

import signal
import subprocess
import sys
import urllib.request

import stagescope
from otlp_requests import recorded
from stagescope.cli import main


def test_prints_what_it_received_and_ends_on_ctrl_c(tmp_path):
    command = [
        sys.executable,
        "-u",
        "-m",
        "stagescope",
        "receive",
        "-o",
        str(tmp_path / "out"),
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        endpoint = first.split()[3]
        count, requests = recorded()
        for headers, body in requests:
            sent = urllib.request.Request(f"{endpoint}/v1/traces", body, headers)  # noqa: S310 - loopback
            with urllib.request.urlopen(sent, timeout=30) as answer:  # noqa: S310 - same
                assert answer.status == 200
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert first.startswith("receiving traces at http://127.0.0.1:")
    (path,) = (tmp_path / "out").iterdir()
    assert printed.splitlines() == [
        "  first spans of rank 0 on node1",
        "  first spans of rank 1 on node1",
        f"received {count} spans of 2 processes: {path}",
    ]
    assert path.read_bytes().endswith(b"\n")
    assert stagescope.read(path).ranks.height == 2


def test_receiving_nothing_is_stated_and_exits_with_1(tmp_path, capsys):
    assert main(["receive", "-o", str(tmp_path / "out"), "--port", "0", "--seconds", "0"]) == 1
    assert "received no span; no file was written" in capsys.readouterr().out


def test_help_has_examples(capsys):
    assert main(["receive", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "stagescope receive -o traces" in shown
    assert "MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch,communication" in shown
