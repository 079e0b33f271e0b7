"""Pipelines that compress gradients of hidden states: real as virtual ones, bytes, losses, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pool import Workers
from recorded import outcome
from torch import Tensor
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.codecs.backward import BackwardMessage
from gradwire.codecs.optimus_cc import OptimusCC
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.record.runs import load_run
from gradwire.harness.runtime.errors import ConfigError

RANK = 2
RUN = (
    *("parallel=pipeline", "cluster.workers=4", "model.num_layers=2", "train.accumulation=4"),
    *("codec=optimus_cc", f"codec.backward_rank={RANK}"),
)
VIRTUAL = "cluster=virtual"
TOKENS, HIDDEN = 2 * 32, 32
WHOLE, FACTORS = 4 * TOKENS * HIDDEN, 4 * RANK * (TOKENS + HIDDEN)
"""Bytes of an uncompressed message, and of a compressed one."""


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, two replicas, with dropout."""
    directory = tmp_path_factory.mktemp("backward") / "virtual"
    train_all_virtually(tiny_run(*RUN, VIRTUAL, "train.log_every=1"), str(directory))
    return directory


def test_real_equals_virtual_and_resumed_equals_undisturbed(
    virtual: Path, tmp_path: Path, workers: Workers
) -> None:
    config, run, directory = tiny_run(*RUN, "train.log_every=1"), workers(4), tmp_path / "real"
    assert run(train_rank, config, str(directory), None, 2) == [False] * 4
    assert run(train_rank, config, str(directory), opened(config, directory)) == [True] * 4
    assert load_run(directory).done.resumed_after == [2]
    assert outcome(directory) == outcome(virtual)


def test_bytes_are_those_of_the_factors(virtual: Path) -> None:
    """In each step of two replicas all gradients but the last micro-batch's are factors."""
    done = load_run(virtual).done
    assert done.bytes_by_phase["activations"] == 4 * 2 * (4 * WHOLE + 3 * FACTORS + WHOLE)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_epilogue_of_four_stages(schedule: str, tmp_path: Path) -> None:
    """The stages before the last, second and first one await 1, 2 and 3 gradients there."""
    config = tiny_run(
        *(*RUN, VIRTUAL, "parallel.stages=4", "model.num_layers=4", "codec.backward=epilogue"),
        *(f"parallel.schedule={schedule}", "train.steps=1", "train.accumulation=5"),
    )
    train_all_virtually(config, str(tmp_path))
    compressed, messages = 1 + 2 + 3, 3 * 5
    expected = messages * WHOLE + (messages - compressed) * WHOLE + compressed * FACTORS
    assert load_run(tmp_path).done.bytes_by_phase["activations"] == expected


def test_training_stays_near_that_without_compression(tmp_path: Path) -> None:
    """The loss falls by at least 0.9 times as much; the first one is the same."""
    losses = {}
    for name, given in (("fp32", ["codec=fp32"]), ("optimus_cc", [*RUN[-2:], "codec.backward=all"])):
        config = tiny_run(
            *(*RUN[:4], *given, VIRTUAL, "train.steps=12", "train.log_every=1", "eval.every=12"),
            *("model.dropout=0", "measure.vnmse_every=12"),
        )
        train_all_virtually(config, str(tmp_path / name))
        losses[name] = [row["loss"] for row in load_run(tmp_path / name).steps]
    (first, *_, last), found = losses["fp32"], losses["optimus_cc"]
    assert found[0] == first
    assert found[-1] != last
    assert found[0] - found[-1] >= 0.9 * (first - last) > 0


def test_a_gradient_that_is_not_finite_skips_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All stages skip it, and the error is that of the step before."""
    encode, states = OptimusCC.encode_backward, list[Tensor]()

    def spoiling(self: OptimusCC, gradient: Tensor, message: BackwardMessage) -> Tensor:
        if message.micro_batch == 0 and message.step >= 1:
            states.append(self.state_dict()["backward/error/stage1"].clone())
        if (message.step, message.micro_batch) == (1, 1):
            gradient = gradient.clone()
            gradient[0, 0, 0] = torch.inf
        return encode(self, gradient, message)

    monkeypatch.setattr(OptimusCC, "encode_backward", spoiling)
    config = tiny_run(
        *(*RUN, VIRTUAL, "cluster.workers=2", "codec.backward=all", "train.steps=3", "train.log_every=1"),
    )
    train_all_virtually(config, str(tmp_path))
    assert [row["skipped"] for row in load_run(tmp_path).steps] == [False, True, False]
    before, after = states
    assert before.any()
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["parallel=pipeline", "codec.stages=3"], "codec.stages=3 exceeds parallel.stages=2; leave"),
        (
            ["parallel=pipeline", "codec.backward_rank=0"],
            "codec.backward_rank=0: choose a whole number from 1",
        ),
        (
            ["parallel=ddp", "codec.stages=2"],
            "codec.stages=2 exceeds the one stage of a run without a pipeline",
        ),
        (["parallel=ddp", "codec.backward=all"], "codec.backward=all has no effect with one stage"),
        (
            ["parallel=pipeline", "parallel.stages=1", "codec.backward=epilogue"],
            "codec.backward=epilogue has no",
        ),
        (["parallel=pipeline", "codec.ef=true"], "codec=optimus_cc has error feedback of its own"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        validate(
            compose(["size=tiny", "codec=optimus_cc", "cluster.workers=4", "model.num_layers=2", *given])
        )
    assert "\n" not in str(raised.value)
