"""Equal settings are one run wherever they lie; different settings are not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from gradwire.harness.config.run_name import run_directory, run_name
from gradwire.harness.config.validate import validate
from gradwire.harness.record.identity import run_id, settings_id

Identify = Callable[..., str]


@pytest.fixture
def identify(with_values: Callable[..., DictConfig]) -> Identify:
    return lambda *overrides: run_id(validate(with_values(*overrides)))


def test_the_id_is_stable_and_short(identify: Identify) -> None:
    assert re.fullmatch("[0-9a-f]{12}", identify())
    assert identify() == identify("train.accumulation=1", "codec=dynamiq")


@pytest.mark.parametrize(
    "override",
    [
        "cluster.timeout_s=7",
        "cluster.hang_s=7",
        "cluster.restarts=3",
        "train.log_every=3",
        "train.max_skipped=0",
        "measure.trace=false",
    ],
)
def test_bookkeeping_does_not_change_it(override: str, identify: Identify) -> None:
    assert identify(override) == identify()


def test_auto_is_what_it_stands_for(identify: Identify) -> None:
    assert identify("dataset=embedded") == identify()
    assert identify("train.precision=fp32", "cluster.device=cpu") == identify("cluster.device=cpu")


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "codec=bf16",
        "codec.bits=4",
        "topology=butterfly",
        "model=llama1b",
        "train.steps=90",
        "train.lr=0.1",
        "cluster.workers=2",
        "cluster.ranks_per_node=2",
        "cluster=virtual",
        "network=paced",
        "network=simulated",
        "overlap.enabled=false",
        "overlap.segments=4",
        "eval.every=5",
        "measure.vnmse_every=1",
    ],
)
def test_settings_that_change_the_result_change_it(override: str, identify: Identify) -> None:
    assert identify(override) != identify()


@pytest.mark.parametrize("bits", ["null", "8"])
def test_settings_added_later_keep_the_ids_of_what_ran_before(bits: str, identify: Identify) -> None:
    """That is, those of `codec=aqgb` from when it had neither base nor scale, bits nor leftovers."""
    blocks = ("cluster=virtual", "cluster.workers=2", "parallel=blocks", "topology=broadcast", "codec=aqgb")
    before = identify(*blocks, "size=tiny")
    assert before == identify(*blocks, "size=tiny", "codec.base=embedded", "codec.scale=block")
    assert (before == identify(*blocks, "size=tiny", f"codec.bits={bits}")) == (bits == "null")
    assert before != identify(*blocks, "size=tiny", "codec.base=plain")
    assert before == identify(*blocks, "size=tiny", "codec.leftovers=kept")
    assert before != identify(*blocks, "size=tiny", "codec.leftovers=requantized")


def test_ids_of_records_are_those_of_the_same_settings_now(with_values: Callable[..., DictConfig]) -> None:
    """Without the settings that were added since, a configuration has the id that its record has."""
    blocks = ("cluster=virtual", "cluster.workers=2", "parallel=blocks", "topology=broadcast", "codec=aqgb")
    settings = validate(with_values(*blocks)).mapping()
    older = {**settings, "codec": {**settings["codec"]}}
    for added in ("base", "scale", "bits", "leftovers"):
        del older["codec"][added]
    assert settings_id(older) == settings_id(settings)


def write_text(folder: Path, text: str = "words\n") -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "a.txt").write_text(text)
    (folder / "notes.pdf").write_text(str(folder))  # no format of ours
    return folder


def test_the_same_data_elsewhere_is_the_same_run(tmp_path: Path, identify: Identify) -> None:
    first, second = write_text(tmp_path / "one"), write_text(tmp_path / "two")
    assert identify(f"dataset.path={first}") == identify(f"dataset.path={second}")
    before = identify(f"dataset.path={second}")
    same_size = write_text(tmp_path / "three", "sword\n")
    assert identify(f"dataset.path={same_size}") != before
    changed = second / "part" / "a.txt"
    changed.write_text("sword\n")
    os.utime(changed, ns=(1, 1))
    assert identify(f"dataset.path={second}") == identify(f"dataset.path={same_size}")
    changed.rename(second / "part" / "b.txt")
    assert identify(f"dataset.path={second}") != identify(f"dataset.path={same_size}")


def test_name_and_directory_say_what_ran(with_values: Callable[..., DictConfig]) -> None:
    config = validate(with_values("codec.bits=4.5", "seed=3", "topology=butterfly"))
    assert run_name(config) == f"gpt2-dynamiq-4.5-butterfly-s3-{run_id(config)}"
    assert run_directory(config) == Path("outputs") / run_name(config)
    assert run_directory(config, "here") == Path("here")
    plain = validate(with_values("codec=bf16"))
    assert run_name(plain).startswith("gpt2-bf16-ring-s0-")
