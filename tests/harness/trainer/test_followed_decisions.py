"""Decisions are on record, and a run that follows them is the run that made them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clock_codec import ClockDriven, train_rank_by_the_clock
from pool import Workers
from recorded import loads
from training_jobs import tiny_run, train_all_virtually, train_rank

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.identity import decided_about, run_id
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.trainer.settings import RunConfig

MX = ("codec=mxfp8", "codec.gamma=0.5", "cluster.workers=3")


def decisions(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "decisions.jsonl").read_text().splitlines()]


def losses(directory: Path) -> list[tuple[float, float]]:
    rows = [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"]) for row in rows]


def by_the_clock(*overrides: str, **options: Any) -> RunConfig:
    config = tiny_run("cluster.workers=2", "train.steps=6", *overrides)
    return replace(config, codec={"name": ClockDriven.name, **options})


def test_runs_that_follow_the_clock_are_alike_where_decisions_are_followed(
    tmp_path: Path, workers: Workers
) -> None:
    """Another network and real workers follow the decisions; neither would decide alike on its own."""
    train_all_virtually(by_the_clock("cluster=virtual"), str(tmp_path / "first"))
    header, *first = decisions(tmp_path / "first")
    assert header["steps"] == len(first) == 6
    assert first[0]["millionths"] == 0, "nothing was seen before the first step"
    assert len({row["millionths"] for row in first}) > 2

    slower = ("cluster=virtual", "network=simulated", "network.rate_mbit=10")
    train_all_virtually(by_the_clock(*slower), str(tmp_path / "other"))
    assert decisions(tmp_path / "other")[1:] != first
    assert losses(tmp_path / "other") != losses(tmp_path / "first")

    file = str(tmp_path / "first" / "decisions.jsonl")
    train_all_virtually(by_the_clock(*slower, decisions=file), str(tmp_path / "following"))
    workers(2)(train_rank_by_the_clock, by_the_clock(decisions=file), str(tmp_path / "real"))
    workers(2)(train_rank_by_the_clock, by_the_clock(), str(tmp_path / "by itself"))
    _, *real = decisions(tmp_path / "by itself")
    assert real[0]["millionths"] == 0 and len({row["millionths"] for row in real}) > 2
    for name in ("following", "real"):
        assert decisions(tmp_path / name) == [header, *first]
        assert losses(tmp_path / name) == losses(tmp_path / "first")


def test_what_mxfp_decides_is_its_mu(tmp_path: Path, workers: Workers) -> None:
    """Alike in both worlds, and in a run that was stopped and resumed."""
    train_all_virtually(tiny_run(*MX, "cluster=virtual"), str(tmp_path / "virtual"))
    workers(3)(train_rank, tiny_run(*MX), str(tmp_path / "real"))
    stopped = tiny_run(*MX, "cluster=virtual", "train.log_every=1")
    train_all_virtually(stopped, str(tmp_path / "resumed"), 2)
    assert len(decisions(tmp_path / "resumed")) < 5
    train_all_virtually(stopped, str(tmp_path / "resumed"))
    header, *made = decisions(tmp_path / "virtual")
    assert header["settings"]["codec.gamma"] == 0.5 and header["settings"]["cluster.workers"] == 3
    assert [row["step"] for row in made] == [1, 2, 3, 4]
    rows = [loads(line) for line in (tmp_path / "virtual" / "steps.jsonl").read_text().splitlines()]
    assert [row["mu"][0] for row in made[:3]] == [row["codec/mu"] for row in rows[1:]]
    assert decisions(tmp_path / "real") == decisions(tmp_path / "resumed") == [header, *made]


def test_a_run_that_decides_nothing_has_no_file(tmp_path: Path) -> None:
    train_all_virtually(tiny_run("codec=bf16", "cluster=virtual", "cluster.workers=2"), str(tmp_path))
    assert not (tmp_path / "decisions.jsonl").exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decisions of a run with MX."""
    directory = tmp_path_factory.mktemp("recorded")
    train_all_virtually(tiny_run(*MX, "cluster=virtual"), str(directory))
    return directory / "decisions.jsonl"


def test_a_run_that_follows_is_a_run_of_its_own_and_nothing_else_is(recorded: Path, tmp_path: Path) -> None:
    plain = tiny_run(*MX, "cluster=virtual")
    following = tiny_run(*MX, "cluster=virtual", f"codec.decisions={recorded}")
    assert run_id(plain) != run_id(following)
    elsewhere = tmp_path / recorded.name
    elsewhere.write_bytes(recorded.read_bytes())
    assert run_id(tiny_run(*MX, "cluster=virtual", f"codec.decisions={elsewhere}")) == run_id(following)
    tiny_run(*MX, f"codec.decisions={recorded}")  # real workers may follow it
    tiny_run(*MX, "cluster=virtual", "network=simulated", f"codec.decisions={recorded}")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=1", "with seed=0, this one has seed=1"),
        ("codec.gamma=0.6", "with codec.gamma=0.5, this one has codec.gamma=0.6"),
        ("cluster.workers=2", "with cluster.workers=3, this one has cluster.workers=2"),
        ("topology=butterfly", "with topology.name=ring, this one has topology.name=butterfly"),
        ("train.steps=5", "with train.steps=4, this one has train.steps=5"),
    ],
)
def test_decisions_of_another_run_are_refused(recorded: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tiny_run(*MX, override, f"codec.decisions={recorded}")
    assert str(refused.value).startswith(f"codec.decisions={recorded} belongs to another run, {said}")
    assert "\n" not in str(refused.value)


def test_what_is_no_file_of_decisions_is_refused(recorded: Path, tmp_path: Path) -> None:
    lines = recorded.read_text().splitlines(keepends=True)
    renamed = lines[2].replace("mu", "nu")

    def with_mu(text: str) -> list[str]:
        return [lines[0], f'{{"step": 1, "mu": {text}}}\n', *lines[2:]]

    made = {
        "cannot be read: no such file or directory; give the decisions.jsonl": None,
        "its first line does not identify the run": lines[1:],
        "ends after 3 of 4 steps: the run has not finished": lines[:-1],
        "line 3 is damaged": [*lines[:2], lines[2][:9] + "\n", *lines[3:]],
        "line 3 is not the decision for step 2": [*lines[:2], *lines[3:]],
        "line 3: decides nu, but codec=mxfp8 decides mu": [*lines[:2], renamed, *lines[3:]],
        "line 2: mu is neither a number nor a list of numbers": with_mu("[true]"),
        "line 2: mu has nan, not a list of numbers from 0 to 1e+30": with_mu('["nan", 1]'),
        "line 2: mu has 1e+308, not a list of numbers from 0 to 1e+30": with_mu("[1e308, 1]"),
        "line 2: mu has -7, not a list": with_mu("[4, -7]"),
        "line 2: mu has 0.5, which is less than codec.mu_minimum=1": with_mu("[4, 0.5]"),
        "line 2: mu has 0 numbers, not 2": with_mu("[]"),
        "line 2: mu is one number, not a list": with_mu("4"),
        "line 1 is damaged": ["\xff\n"],
        "line 2 is damaged": with_mu("[" * 9000),
    }
    for number, (said, content) in enumerate(made.items()):
        path = tmp_path / f"{number}.jsonl"
        if content is not None:
            path.write_text("".join(content))
        with pytest.raises(ConfigError) as refused:
            tiny_run(*MX, "cluster=virtual", f"codec.decisions={path}")
        assert str(refused.value).startswith(f"codec.decisions={path}") and said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_decisions_that_were_changed_since_their_run_was_done_are_refused(
    recorded: Path, tmp_path: Path
) -> None:
    shutil.copytree(recorded.parent, tmp_path / "run")
    path = tmp_path / "run" / recorded.name
    tiny_run(*MX, "cluster=virtual", f"codec.decisions={path}")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], lines[2].replace("[", "[1"), *lines[3:]]))
    with pytest.raises(
        ConfigError, match="differs from its digest in DONE; damaged or changed since"
    ) as error:
        tiny_run(*MX, "cluster=virtual", f"codec.decisions={path}")
    assert str(error.value).startswith(f"codec.decisions={path}: ")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("codec=bf16",), "codec=bf16 makes no decisions; leave it out"),
        (("task=allreduce", "codec=mxfp8"), "task=allreduce; a training run follows decisions; leave it out"),
    ],
)
def test_a_codec_that_decides_nothing_follows_nothing(
    recorded: Path, overrides: Sequence[str], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_any(compose([*overrides, "size=tiny", "cluster.workers=3", f"codec.decisions={recorded}"]))
    assert str(refused.value).startswith(f"codec.decisions={str(recorded)[:20]}"), "a long path is shortened"
    assert str(refused.value).endswith(said)


def test_other_nodes_are_another_run_where_the_topology_depends_on_them() -> None:
    def about(topology: str, local: int) -> dict[str, Any]:
        placed = f"topology={topology}", "cluster.workers=4", f"cluster.ranks_per_node={local}"
        return decided_about(tiny_run("codec=mxfp4", "cluster=virtual", *placed).mapping())

    assert about("two_level", 1) != about("two_level", 2)
    assert about("ring", 1) == about("ring", 2)
