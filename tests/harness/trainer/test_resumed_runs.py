"""Stopped and resumed runs have the numbers and weights of an undisturbed run, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Workers
from recorded import outcome
from safetensors.torch import load_file
from torch import Tensor
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.codecs.collectives import Collectives
from gradwire.codecs.exact import BF16
from gradwire.codecs.interface import Codec, Round
from gradwire.codecs.registry import codec_classes, register_codec
from gradwire.codecs.traits import Traits
from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.data.token_data import TokenData
from gradwire.harness.launch.worker import train_virtual
from gradwire.harness.record.directory import ENTROPIES
from gradwire.harness.trainer import parts as build_module
from gradwire.harness.trainer.settings import RunConfig

SIZE = 3
STEPS = ("train.steps=9", "train.log_every=1", "eval.every=3", f"cluster.workers={SIZE}")


def resumed_after(directory: Path) -> list[int]:
    found: list[int] = json.loads((directory / "summary.json").read_text())["resumed_after"]
    return found


@pytest.mark.parametrize(
    "codec",
    [
        *("dynamiq", "mxfp8", "mxfp6 codec.exclude=[*wte*,*ln*]"),
        *("powersgd", "omnireduce codec.ef=true", "topk codec.ef=true codec.exclude=[*ln*]"),
        "lattice codec.bits=4 codec.code=packed",
    ],
)
def test_a_virtual_run_resumes_bit_for_bit(codec: str, tmp_path: Path) -> None:
    """The run stops twice: between two checkpoints, and where one is due."""
    more = ("train.checkpoint_every=4", "measure.entropy_every=3")
    config = tiny_run("cluster=virtual", *STEPS, *f"codec={codec}".split(), *more)
    train_all_virtually(config, str(tmp_path / "whole"))
    for stop_after in (3, 5, None):
        train_all_virtually(config, str(tmp_path / "parts"), stop_after)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    whole, parts = ((tmp_path / name / ENTROPIES).read_text() for name in ("whole", "parts"))
    assert whole == parts and whole.count("\n") > 3
    assert (resumed_after(tmp_path / "whole"), resumed_after(tmp_path / "parts")) == ([], [3, 8])


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("codec=mxfp8", "topology=butterfly", "train.accumulation=2"),
        ("model=llama1b_mmlu",),
        ("model=tinybert_glue", "codec=mxfp8"),
    ],
)
def test_a_real_run_resumes_bit_for_bit(more: tuple[str, ...], tmp_path: Path, workers: Workers) -> None:
    """The last rank alone is asked to stop; all end after the same step. Equal to a virtual run as well."""
    config, run = tiny_run(*STEPS, *more), workers(SIZE)
    ended = run(train_rank, config, str(tmp_path / "parts"), None, 4)
    assert ended == [False] * SIZE
    (checkpoint,) = checkpoints(tmp_path / "parts")
    assert opened(config, tmp_path / "parts") == checkpoint
    assert run(train_rank, config, str(tmp_path / "parts"), checkpoint) == [True] * SIZE
    train_all_virtually(tiny_run("cluster=virtual", *STEPS, *more), str(tmp_path / "virtual"))
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "virtual")
    assert resumed_after(tmp_path / "parts") == [4]


def test_checkpoints_hold_the_same_bytes_in_both_worlds(tmp_path: Path, workers: Workers) -> None:
    train_all_virtually(tiny_run("cluster=virtual", *STEPS, "codec=mxfp8"), str(tmp_path / "virtual"), 5)
    workers(SIZE)(train_rank, tiny_run(*STEPS, "codec=mxfp8"), str(tmp_path / "real"), None, 5)
    (real,), (virtual,) = checkpoints(tmp_path / "real"), checkpoints(tmp_path / "virtual")
    names = sorted(path.name for path in real.glob("*.safetensors"))
    assert names == sorted(path.name for path in virtual.glob("*.safetensors"))
    assert names == [*(f"codec-rank{rank}.safetensors" for rank in range(SIZE)), *names[SIZE:]]
    assert names[SIZE:] == ["model.safetensors", "optimizer.safetensors"]
    for name in names:
        first, second = load_file(real / name), load_file(virtual / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(tensor, second[key]) for key, tensor in first.items()), name


def test_the_newest_checkpoints_are_kept_while_a_run_lasts(tmp_path: Path) -> None:
    """When it is done, its launcher removes them."""
    config = tiny_run("cluster=virtual", *STEPS, "train.checkpoint_every=1", "train.keep_checkpoints=3")
    train_all_virtually(config, str(tmp_path / "run"))
    assert [path.name[-1] for path in checkpoints(tmp_path / "run")] == ["8", "7", "6"]


def test_other_buckets_are_refused(tmp_path: Path) -> None:
    config = tiny_run("cluster=virtual", *STEPS)
    train_all_virtually(config, str(tmp_path / "run"), 2)
    other = tiny_run("cluster=virtual", *STEPS, "parallel.bucket_cap_mb=25")
    (checkpoint,) = checkpoints(tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"has other buckets .*; resume=never starts over"):
        train_virtual(other, tmp_path / "run", checkpoint)


def test_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_run("cluster=virtual", *STEPS)
    train_all_virtually(config, str(tmp_path / "run"), 2)
    load = build_module.load_data

    def changed(config: RunConfig) -> TokenData:
        data = load(config)
        return dataclasses.replace(data, description=data.description | {"sha256": "other"})

    monkeypatch.setattr(build_module, "load_data", changed)
    with pytest.raises(RuntimeError, match=r"training on other data .* resume=never"):
        train_all_virtually(config, str(tmp_path / "run"))


def test_memory_of_one_rank_alone_survives(tmp_path: Path) -> None:
    """A codec whose state differs from rank to rank and from parameter to parameter."""
    if "residual" not in codec_classes():
        register_codec(Residual)
    with_memory = dataclasses.replace(tiny_run("cluster=virtual", *STEPS), codec={"name": "residual"})
    train_all_virtually(with_memory, str(tmp_path / "whole"))
    for stop_after in (2, 4, None):
        train_all_virtually(with_memory, str(tmp_path / "parts"), stop_after)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    assert outcome(tmp_path / "parts")["steps.jsonl"][-1]["codec/residual"] > 0


@dataclass
class Residual(Codec):
    """Sends every other coordinate in turns and keeps the rest, per parameter, for the next step."""

    name: str = "residual"
    memory: dict[str, Tensor] = field(default_factory=dict)

    traits = Traits(stateful=True)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        layout, send = this_round.layout, x.clone()
        for name, offset, shape in zip(layout.names, layout.offsets, layout.shapes, strict=True):
            count = math.prod(shape)
            part = send[offset : offset + count]
            part += self.memory.get(name, torch.zeros(count))
            rest = part.clone()
            rest[this_round.step % 2 :: 2] = 0
            part -= rest
            self.memory[name] = rest
        return await BF16().synchronize(send, this_round, comm)

    def end_step(self, step: int) -> dict[str, float]:
        in_order = [self.memory[name] for name in sorted(self.memory)]
        return {"residual": sum(float(rest.double().square().sum()) for rest in in_order)}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def load_state_dict(self, state: Any) -> None:
        self.memory = {name: tensor.clone() for name, tensor in state.items()}
