"""The metrics of `stagescope watch`: the values of the report, scraped over HTTP, and bounded in number."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline_recordings import planted_training, write_training
from stagescope import api
from stagescope.api.metrics import METRICS
from stagescope.api.metrics_server import MetricsCollector, parse_address, serve_metrics
from stagescope.cli import main
from stagescope.vocabulary.errors import CommandError, UsageError

DASHBOARD = Path(__file__).parents[1] / "contrib" / "grafana-dashboard.json"
LIVE = Path(__file__).parents[1] / "docs" / "live.md"
STEPS, SLOW_STEPS, SLOW_RANK = 130, range(80, 110), 2


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recordings")
    write_training(directory, planted_training(STEPS, SLOW_RANK, SLOW_STEPS, 1.3))
    return directory


@pytest.fixture(scope="module")
def watched(recordings):
    """Return a function that returns a collector that has seen the whole training."""
    watcher, updates = api.Watcher(recordings), []
    while not updates or not updates[-1].is_over:
        updates.append(watcher.update())

    def collector(*, per_rank=False):
        found = MetricsCollector(per_rank=per_rank)
        for update in updates:
            found.add(update)
        return found

    return collector


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def values_of(text):
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def text(watched):
    with serve_metrics("127.0.0.1", 0, watched(per_rank=True)) as port:
        return scraped(port)


def test_values_are_those_of_the_report(text, recordings):
    found, report = values_of(text), api.analyze(api.read(recordings))
    last = report.steps.row(STEPS - 1, named=True)
    assert found["stagescope_bubble_ratio", ()] == pytest.approx(last["bubble_fraction"])
    assert found["stagescope_step", ()] == STEPS - 1
    assert found["stagescope_steps_total", ()] == STEPS
    assert found["stagescope_alarms_total", ()] == 1
    assert found["stagescope_alarms_active", ()] == 0
    assert found["stagescope_hung", ()] == 0
    assert found["stagescope_ranks", ("ended",)] == 4
    assert found["stagescope_dropped_spans_total", ()] == 0
    work = [found["stagescope_rank_work_seconds", (str(rank),)] for rank in range(4)]
    assert [found["stagescope_stage_work_seconds", (str(stage),)] for stage in range(4)] == work


def test_unknown_values_are_absent_and_ranks_are_left_out_by_default(watched):
    collector = MetricsCollector()
    assert {family.name for family in collector.collect()} == {
        "stagescope_steps", "stagescope_steps_skipped", "stagescope_alarms", "stagescope_alarms_active",
        "stagescope_hangs",
    }  # fmt: skip
    names = {family.name for family in watched().collect()}
    assert not names & {"stagescope_rank_work_seconds", "stagescope_message_seconds"}


def test_names_follow_the_conventions_of_prometheus(text):
    for metric in METRICS:
        assert re.fullmatch(r"stagescope_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == metric.is_count
        assert metric.description.endswith(".")
    if shutil.which("promtool"):
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_dashboard_queries_metrics_that_exist():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = set(re.findall(r"stagescope_\w+", " ".join(queries)))
    assert named
    assert named <= {metric.name for metric in METRICS}


def test_the_documentation_lists_every_metric():
    lines = LIVE.read_text(encoding="utf-8").splitlines()
    for metric in METRICS:
        labels = "{" + ", ".join(metric.labels) + "}" if metric.labels else ""
        assert f"| `{metric.name}{labels}` | {metric.description.rstrip('.')} |" in lines


def test_watch_serves_metrics_until_it_ends(recordings, capsys):
    assert main(["watch", str(recordings), "--metrics", "127.0.0.1:0", "--json"]) == 3
    assert re.search(r"metrics at http://127\.0\.0\.1:\d+/metrics", capsys.readouterr().err)


def test_an_address_in_use_is_an_error(recordings, capsys):
    with serve_metrics("127.0.0.1", 0, MetricsCollector()) as port:
        assert main(["watch", str(recordings), "--metrics", f"127.0.0.1:{port}"]) == 1
        with pytest.raises(CommandError), serve_metrics("127.0.0.1", port, MetricsCollector()):
            pass
    assert f"cannot listen on port {port} of 127.0.0.1: Address already in use" in capsys.readouterr().err


def test_a_name_that_no_machine_has_is_an_error():
    with pytest.raises(UsageError), serve_metrics("a" * 300, 0, MetricsCollector()):
        pass


@pytest.mark.parametrize(
    ("text", "address"),
    [("9877", ("127.0.0.1", 9877)), ("node-1:1", ("node-1", 1)), ("[::1]:9877", ("::1", 9877))],
)
def test_an_address_has_a_host_and_a_port(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "node", "node:", ":1", "::1:9877", "node:65536", "a b:1"])
def test_anything_else_is_no_address(text):
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        parse_address(text)


@pytest.fixture
def prometheus(watched, tmp_path):
    """Return a function that asks a real Prometheus, which scrapes the metrics of the training."""
    if shutil.which("prometheus") is None:
        pytest.skip("the program prometheus is not installed")
    with ExitStack() as stack:
        port = stack.enter_context(serve_metrics("127.0.0.1", 0, watched()))
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: stagescope, static_configs: "
            f"[{{targets: ['127.0.0.1:{port}']}}]}}]\n"
        )
        own = _free_port()
        words = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        process = stack.enter_context(
            subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{own}"], stderr=subprocess.DEVNULL)
        )
        stack.callback(process.terminate)

        def answer(path, **parameters):
            """Return the data of an answer, as soon as there are any."""
            url = f"http://127.0.0.1:{own}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                time.sleep(0.2)
                try:
                    with urllib.request.urlopen(url, timeout=5) as found:
                        data = json.load(found)["data"]
                except urllib.error.HTTPError as error:
                    pytest.fail(f"{parameters}: {error.read().decode()}")
                except OSError:  # it has not started yet
                    continue
                result = data["result"] if isinstance(data, dict) else data
                if result:
                    return result
            return []

        yield answer


@pytest.mark.exhaustive
def test_a_real_prometheus_scrapes_them(prometheus):
    found = prometheus("query", query="stagescope_steps_total")
    assert float(found[0]["value"][1]) == STEPS


@pytest.mark.exhaustive
def test_a_real_prometheus_answers_every_query_of_the_dashboard(prometheus):
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    (instances,) = (each for each in dashboard["templating"]["list"] if each["name"] == "instance")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", instances["query"]["query"]).groups()
    (instance,) = prometheus(f"label/{label}/values", **{"match[]": metric})
    legends = {}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found = prometheus("query", query=target["expr"].replace("$instance", instance))
            assert found, target["expr"]
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(labels <= set(series["metric"]) for series in found), target["expr"]
            legends[target["expr"]] = len(found)
    assert sum("lost_time" in expression for expression in legends) == 1
    assert max(legends.values()) > 4  # the causes of lost time


def _free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
