"""Tasks of srun: their ranks by SLURM's variables, and a run between two of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import RUN, TINY, finished, started

from gradwire.harness.launch.slurm import adopt_slurm_ranks, first_host, tasks_per_node
from gradwire.harness.runtime.errors import ConfigError

STEP = {
    "SLURM_JOB_ID": "81",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-08,12]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


def test_a_task_of_srun_is_a_rank() -> None:
    environment = dict(STEP)
    adopt_slurm_ranks(environment)
    assert {name: environment[name] for name in environment.keys() - STEP.keys()} == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": str(15000 + 31 * 81 + 2),
    }


def test_what_the_user_sets_stays() -> None:
    environment = {**STEP, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    adopt_slurm_ranks(environment)
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("10.0.0.1", "1234")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "81", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gpu1"},  # a shell of salloc
        {"SLURM_JOB_ID": "81", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # of sbatch
        {**STEP, "SLURM_STEP_ID": str(0xFFFFFFFA)},  # salloc's interactive step
        {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun --pty bash
        {**STEP, "RANK": "0", "WORLD_SIZE": "2"},  # srun torchrun
    ],
)
def test_a_single_process_stays_one(environment: dict[str, str]) -> None:
    before = dict(environment)
    adopt_slurm_ranks(environment)
    assert environment == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_LOCALID": ""}, "SLURM_LOCALID=nothing"),
        ({"SLURM_LOCALID": "2"}, "task 3 is the 2th of node 1"),
        ({"SLURM_NODEID": "3"}, "of node 3"),
        ({"SLURM_PROCID": "5"}, "task 5"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "in 5 tasks as [2, 2] on nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, "'many' is not a list of tasks per node"),
        ({"SLURM_STEP_TASKS_PER_NODE": ""}, "SLURM_STEP_TASKS_PER_NODE is missing"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is missing"),
        ({"SLURM_STEP_NODELIST": "[]"}, "'[]' is not a list of nodes"),
    ],
)
def test_what_cannot_be_told_is_refused_and_torchrun_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        adopt_slurm_ranks({**STEP, **changes})
    assert said in str(refused.value)
    assert "srun --ntasks-per-node=1 torchrun" in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu7", "gpu7"),
        ("a.b-c,d", "a.b-c"),
        ("gpu[07-09,12]-ib,cpu1", "gpu07-ib"),
        ("n[1,3]", "n1"),
    ],
)
def test_the_first_host(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]


def test_a_run_between_two_tasks(tmp_path: Path) -> None:
    """The tasks are started as srun does it: the same command twice, distinguished by the environment
    alone."""
    of_step = {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    tasks = [
        started(tmp_path, RUN, *TINY, **{**of_step, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)})
        for task in range(2)
    ]
    ends = [finished(task) for task in tasks]
    assert [end.returncode for end in ends] == [0, 0], [end.stderr for end in ends]
    (run,) = (tmp_path / "outputs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["workers"], summary["steps"]) == (2, 2)
