"""`run.py network=shaped`, disturbed: nothing is left of its network, and the same command resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import ENDLESS, RUN, assert_alone, errors, finished, started, wait_for_steps, workers_of
from faults import COMMAND, left_behind, recorded_steps
from recorded import outcome

sys.path.append(str(Path(__file__).resolve().parents[1] / "network"))

from namespaces_seen import assert_gone, command_inside, held_by, of_process, root_network

from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train_virtual
from gradwire.harness.network.shaped.check import why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"links cannot be shaped here: {REASON}")

SHAPED = (
    "network=shaped",
    "network.rate_mbit=100",
    "network.background_jobs=1",
    "network.background_mb=1",
    "cluster.timeout_s=20",
)

RESUMED = (*COMMAND, "train.steps=30")
"""A step takes a quarter of a second on these links."""

Harm = Callable[[subprocess.Popen[str]], None]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A working directory; whatever happens in it, the root namespace is as before."""
    before = root_network()
    yield tmp_path
    assert root_network() == before


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of the run in a virtual cluster: links make no difference to it."""
    directory = tmp_path_factory.mktemp("undisturbed")
    config = validate(compose([*RESUMED, "cluster=virtual"]))
    open_run(config, directory)
    train_virtual(config, directory)
    return outcome(directory)


def cut_the_link_of_rank_1(run: subprocess.Popen[str]) -> None:
    command_inside(of_process(workers_of(run)[1]), "ip link set uplink down")


def kill_rank_1(run: subprocess.Popen[str]) -> None:
    os.kill(workers_of(run)[1], signal.SIGKILL)


def press_control_c(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGINT)


def kill_the_launcher(run: subprocess.Popen[str]) -> None:
    run.kill()


def disturbed(
    run: subprocess.Popen[str], directory: Path, harm: Harm, steps: int = 1, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """The outcome of a run that `harm` comes to after so many steps; asserts that nothing is left of it."""
    wait_for_steps(run, directory)
    while recorded_steps(directory) < steps:
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    namespaces = held_by(run.pid)
    assert len(namespaces) == 3
    harm(run)
    ended = finished(run, timeout_s)
    assert_alone(run)
    assert_gone(namespaces)
    return ended


def test_a_cut_link_ends_the_attempt_and_the_next_one_has_a_network_of_its_own(
    here: Path, undisturbed: dict[str, Any]
) -> None:
    directory = here / "run"
    command = (RUN, *RESUMED, *SHAPED, "cluster.restarts=1", "hydra.run.dir=run")
    ended = disturbed(started(here, *command), directory, cut_the_link_of_rank_1, 6, 240)
    assert ended.returncode == 0, ended.stderr
    assert "restart 1 of 1: rank 1 failed: its link is down" in ended.stdout
    assert "resuming after step" in ended.stdout
    assert outcome(directory) == undisturbed
    assert not left_behind(directory)
    attempts = json.loads((directory / "run.json").read_text())["attempts"]
    networks = json.loads((directory / "network.json").read_text())
    assert [network.pop("from_step") for network in networks] == [one["from_step"] for one in attempts]
    assert len(networks) == 2
    for network in networks:
        (goodput,) = network.pop("background_goodput_mbit")
        assert 0 < goodput < 100
        assert 70 < network.pop("goodput_mbit") < 100
        assert network == {
            "rate_mbit": 100,
            "queue_kb": 256,
            "congestion_control": "reno",
            "background_jobs": 1,
        }


ENDS: list[tuple[Harm, int, str]] = [
    (cut_the_link_of_rank_1, 1, "rank 1 failed: its link is down"),
    (kill_rank_1, 1, "rank 1 was killed by SIGKILL"),
    (press_control_c, 128 + signal.SIGINT, "interrupted"),
    (kill_the_launcher, -signal.SIGKILL, ""),
]


@pytest.mark.parametrize(("harm", "code", "reason"), ENDS, ids=[case[0].__name__ for case in ENDS])
def test_nothing_is_left_of_the_network(harm: Harm, code: int, reason: str, here: Path) -> None:
    arguments = (RUN, *ENDLESS, *SHAPED, "cluster.workers=2", "hydra.run.dir=run")
    ended = disturbed(started(here, *arguments), here / "run", harm)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    if reason:
        (line,) = errors(ended.stderr)
        assert line.startswith(f"error: {reason}")
        assert (here / "run" / "FAILED").read_text().startswith(reason)
