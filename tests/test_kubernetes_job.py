"""The job for Kubernetes is valid, and what it runs is a command of stagescope."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagescope.cli.store import command

MANIFEST = Path(__file__).parents[1] / "contrib" / "kubernetes" / "store-job.yaml"


@pytest.fixture
def job():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(MANIFEST.read_text())


def test_the_job_runs_a_command_that_exists(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program, name, *arguments = container["command"]
    assert (program, name) == ("stagescope", "store")
    assert command.make_context(name, arguments).params["workers"] == int(
        container["resources"]["requests"]["cpu"]
    )


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_job_conforms_to_the_schema_of_kubernetes(version, job):
    schemas = pytest.importorskip("kubernetes_validate")
    assert schemas.validate(job, version, strict=True) == version
