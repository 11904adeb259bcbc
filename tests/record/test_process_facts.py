from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from stagescope.record import process_facts as module
from stagescope.record.process_facts import machine_directory, process_facts


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for variable in {
        *module._RANK,
        *module._WORLD_SIZE,
        *module._NODES,
        *sum(module._HERE_AND_EVERYWHERE, ()),
    }:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(module.os, "uname", lambda: SimpleNamespace(nodename="node-a"))


LAUNCHERS = {
    "torchrun": (
        {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"},
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "1"},
    ),
    "torchrun within a larger Slurm action": (
        {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "SLURM_NNODES": "4"},
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "SLURM_NNODES": "4"},
    ),
    "deepspeed": (
        {"RANK": "5", "WORLD_SIZE": "16", "CROSS_SIZE": "2"},
        {"RANK": "5", "WORLD_SIZE": "8", "CROSS_SIZE": "1"},
    ),
    "Open MPI": (
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
    ),
    "paddle": (
        {"PADDLE_TRAINER_ID": "5", "PADDLE_TRAINERS_NUM": "16", "PADDLE_NNODES": "2"},
        {
            "PADDLE_TRAINER_ID": "5",
            "PADDLE_TRAINERS_NUM": "8",
            "PADDLE_LOCAL_SIZE": "8",
            "PADDLE_GLOBAL_SIZE": "8",
        },
    ),
    "Slurm": (
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_NNODES": "2"},
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "2"},
    ),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("machines", [2, 1])
def test_each_launcher_provides_rank_size_and_number_of_machines(monkeypatch, launcher, machines):
    for variable, value in LAUNCHERS[launcher][machines == 1].items():
        monkeypatch.setenv(variable, value)
    facts = process_facts(0)
    assert (facts["rank"], facts["world_size"]) == (5, 16 if machines == 2 else 8)
    assert machine_directory("/runs") == ("/runs/node-a" if machines == 2 else "/runs")


def test_without_a_launcher_the_rank_is_0_on_one_machine():
    facts = process_facts(7)
    assert (facts["rank"], facts["world_size"], facts["process_start_ns"]) == (0, None, 7)
    assert (facts["host"], facts["pid"]) == ("node-a", os.getpid())
    assert machine_directory("/runs") == "/runs"


@pytest.mark.parametrize(
    ("host", "folder"),
    [("a/b", "a_b"), ("..", "machine"), ("", "machine"), ("node.example.com", "node.example.com")],
)
def test_machine_name_becomes_a_single_folder(monkeypatch, host, folder):
    monkeypatch.setattr(module.os, "uname", lambda: SimpleNamespace(nodename=host))
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert machine_directory("/runs") == f"/runs/{folder}"


@pytest.mark.parametrize("words", ["two", "-1", "", "2.0"])
def test_non_numeric_variables_are_ignored(monkeypatch, words):
    monkeypatch.setenv("GROUP_WORLD_SIZE", words)
    monkeypatch.setenv("WORLD_SIZE", words)
    assert machine_directory("/runs") == "/runs"
    assert process_facts(0)["world_size"] is None
