"""`kernels=`: its meaning on each device, what is refused, and that runs use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from gradwire.codecs.native import choice
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.launch import worker
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.overhead import rank
from gradwire.harness.studies.replay.rounds import Replay
from gradwire.harness.studies.replay.study import STUDY as REPLAY

Built = Callable[..., None]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    """Sets which kernels there are, and how many GPUs."""

    def set_available(*names: str, gpus: int = 0) -> None:
        monkeypatch.setattr(choice, "available_kernels", lambda: ("default", *names))
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)

    return set_available


def config(*overrides: str) -> DictConfig:
    return compose(["size=tiny", "cluster.workers=1", *overrides])


@pytest.mark.parametrize(
    ("names", "gpus", "overrides", "expected"),
    [
        ((), 0, [], "default"),
        (("cpu",), 0, [], "cpu"),
        (("cpu",), 0, ["kernels=default"], "default"),
        (("cpu", "cuda"), 1, [], "cuda"),
        (("cpu", "cuda"), 1, ["cluster.device=cpu"], "cpu"),
        (("cpu",), 1, [], "default"),
    ],
)
def test_auto_is_the_fastest_for_the_device(
    names: tuple[str, ...], gpus: int, overrides: list[str], expected: str, built: Built
) -> None:
    built(*names, gpus=gpus)
    assert validate(config(*overrides)).kernels.name == expected


@pytest.mark.parametrize(
    ("names", "gpus", "overrides", "parts"),
    [
        ((), 0, ["kernels=cpu"], ["kernels=cpu is not available here", "C++ compiler"]),
        (("cpu",), 0, ["kernels=cuda"], ["kernels=cuda is not available here", "auto or default or cpu"]),
        (("cpu", "cuda"), 1, ["kernels=cpu"], ["kernels=cpu cannot run on cuda"]),
        ((), 0, ["task=overhead"], ["kernels=auto", "task=overhead", "C++ compiler", "kernels=default"]),
        (("cpu",), 1, ["task=overhead"], ["cluster.device=cuda", "nvcc", "kernels=default"]),
    ],
)
def test_what_cannot_run_is_refused(
    names: tuple[str, ...], gpus: int, overrides: list[str], parts: list[str], built: Built
) -> None:
    built(*names, gpus=gpus)
    with pytest.raises(ConfigError) as refused:
        validate(config(*overrides))
    assert "\n" not in str(refused.value)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_who_asks_for_the_slow_definition_may_time_it(built: Built) -> None:
    built()
    assert validate(config("task=overhead", "kernels=default")).kernels.name == "default"


GPUS = ("cluster.workers=2", "measure.spans=false")


@pytest.mark.parametrize(
    ("gpus", "overrides", "reason"),
    [
        (0, [], "CUDA graphs need ranks on GPUs, and these are on cpu"),
        (2, ["cluster=virtual", "cluster.gradients=disk"], "cluster.gradients=disk has each round read"),
        (2, ["measure.check_hashes=true"], "check_hashes=true has the host compare"),
        (2, ["codec=omnireduce"], "codec=omnireduce does not do the same in every step"),
        (2, ["kernels=default"], "kernels=default takes the key by value"),
    ],
)
def test_required_graphs_are_refused_where_nothing_can_be_captured(
    gpus: int, overrides: list[str], reason: str, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("cpu", "cuda", gpus=gpus)
    monkeypatch.setattr(choice, "library", lambda name: name)
    with pytest.raises(ConfigError) as refused:
        validate(config(*GPUS, "kernels.graphs=always", *overrides))
    said = str(refused.value)
    assert said.startswith(f"kernels.graphs=always: {reason}") and said.endswith("; use kernels.graphs=auto")


@pytest.mark.parametrize(
    ("graphs", "overrides"),
    [
        ("auto", []),
        ("never", []),
        ("always", []),
        ("always", ["measure.spans=true"]),
        ("always", ["codec.ef=true"]),
        ("always", ["codec=mxfp8"]),
        ("always", ["parallel=sharded", "codec=fp32"]),
        ("always", ["parallel=blocks", "codec=fp32"]),
    ],
)
def test_graphs_are_kept_as_they_are_asked_for(
    graphs: str, overrides: list[str], built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("cpu", "cuda", gpus=2)
    monkeypatch.setattr(choice, "library", lambda name: name)
    assert validate(config(*GPUS, f"kernels.graphs={graphs}", *overrides)).kernels.graphs == graphs


def test_graphs_have_no_effect_on_tasks_that_replay_no_round(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", gradients=np.ones((2, 300), np.float32))
    chosen = ["task=replay", f"gradients={tmp_path}/own.npz", "kernels.graphs=never"]
    with pytest.raises(ConfigError, match="kernels.graphs=never has no effect with task=replay; leave"):
        validate_any(compose(chosen))
    assert validate_any(compose(["task=bench", "kernels.graphs=never"])).kernels.graphs == "never"  # type: ignore[attr-defined]


class SeenError(Exception):
    """Ends a run as soon as it uses kernels."""


@pytest.fixture
def used() -> Iterator[list[str]]:
    """The kernels in use when `stop` was called; afterwards those of before are in use again."""
    before = choice._active
    yield []
    assert choice._active == before


def stop(used: list[str]) -> Callable[..., Any]:
    def note(*args: Any, **kwargs: Any) -> Any:
        used.append(choice._active)
        raise SeenError

    return note


def test_it_takes_effect_in_training(
    used: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker, "build", stop(used))
    with pytest.raises(SeenError):
        worker.train(validate(config("kernels=default")), tmp_path, torch.device("cpu"))
    assert used == ["default"]


def test_it_takes_effect_in_replay(used: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", gradients=np.ones((2, 300), np.float32))
    chosen = ["task=replay", f"gradients={tmp_path}/own.npz", "kernels=default"]
    monkeypatch.setattr(Replay, "repeat", stop(used))
    with pytest.raises(SeenError):
        REPLAY.run(validate_any(compose(chosen)), tmp_path / "out")
    assert used == ["default"]


def test_it_takes_effect_in_overhead(
    used: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def joined(*args: Any) -> Iterator[torch.device]:
        yield torch.device("cpu")

    monkeypatch.setattr(rank, "joined_process_group", joined)
    monkeypatch.setattr(rank, "Stepper", stop(used))
    with pytest.raises(SeenError):
        rank.benchmark_rank(validate(config("task=overhead", "kernels=default")), tmp_path, tmp_path, 0)
    assert used == ["default"]
