"""The benchmark of the harness: its arithmetic, and one short run of the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import TINY_MODEL
from warm import run_command

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.overhead.rank import (
    TimedBlock,
    alternate,
    as_lists,
    over_ranks,
    ratio,
    summarize,
)
from gradwire.harness.studies.overhead.study import STUDY, BlockRatio, OverheadRecord, StepSeconds
from gradwire.harness.studies.overhead.task import table


def test_contestants_take_turns_after_an_uncounted_round() -> None:
    ran: list[tuple[str, int]] = []
    met: list[int] = []
    contestants = {name: lambda steps, name=name: ran.append((name, steps)) for name in "ab"}
    blocks = alternate(contestants, blocks=3, steps=5, meet=lambda: met.append(len(ran)))
    assert [name for name, _ in ran] == list("abbaabba")
    assert {steps for _, steps in ran} == {5}
    assert met == list(range(8)), "ranks meet before each block"
    assert {name: len(found) for name, found in blocks.items()} == {"a": 3, "b": 3}


def test_time_is_that_of_one_step() -> None:
    blocks = alternate({"busy": lambda steps: sum(range(200_000 * steps))}, 1, 4, lambda: None)["busy"]
    assert 0 < blocks[0].cpu_s < 4 * blocks[0].cpu_s < 60
    assert blocks[0].wall_s > 0


def test_ratios_and_the_job_of_all_ranks() -> None:
    assert ratio([2.0, 3.0, 4.0], [1.0, 2.0, 1.0]) == BlockRatio(3.0, 1.5, 2.0, 4.0)
    assert ratio([2.0], [0.0]) is None
    one = as_lists({"bare": [TimedBlock(1.0, 5.0)], "harness": [TimedBlock(2.0, 6.0)]})
    two = as_lists({"bare": [TimedBlock(3.0, 4.0)], "harness": [TimedBlock(2.0, 7.0)]})
    job = over_ranks([one, two])
    assert job == {"bare": [TimedBlock(4.0, 5.0)], "harness": [TimedBlock(4.0, 7.0)]}
    found = summarize(job, "bare")
    to_bare = found["ratio"]["harness"]
    assert (to_bare.cpu.of_medians, to_bare.wall.of_medians) == (1.0, 7 / 5)
    assert found["seconds_per_step"]["bare"] == StepSeconds(4.0, 5.0)


def test_the_command_measures_and_records(tmp_path: Path) -> None:
    settings = ("cluster.workers=2", "overhead.blocks=1", "overhead.steps=2", "kernels=default")
    more = ("measure.vnmse_every=0", *settings, "hydra.run.dir=.")
    done = run_command(tmp_path, "task=overhead", *TINY_MODEL, *more)
    assert done.returncode == 0, done.stderr
    found = OverheadRecord.read(tmp_path / OverheadRecord.file)
    assert (found.codec, found.kernel_backend) == ("backend", "default") and found.code_hash
    assert set(found.seconds_per_step) == {"bare", "harness", "harness without recording"}
    assert all(seconds.cpu > 0 for seconds in found.seconds_per_step.values())
    assert found.recording.spans_per_step >= 3
    assert done.stdout.startswith(table(found))


def test_it_starts_its_own_workers(tmp_path: Path) -> None:
    config = validate(
        compose(["task=overhead", "size=tiny", "cluster=virtual", "codec=fp32", "kernels=default"])
    )
    with pytest.raises(ConfigError, match="use cluster=local"):
        STUDY.resolve(config)
