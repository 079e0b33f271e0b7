"""Plain DistributedDataParallel training with `gradwire.attach`, on pool workers."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire


@gradwire.register_codec
@dataclass
class Halves(gradwire.StatelessCodec):
    """A codec from outside: everybody's float16 values, averaged in rank order."""

    name: str = "halves"
    fails_on_rank: int = -1
    differs_on_rank: int = -1
    shortens: bool = False

    async def synchronize(self, x: Tensor, round: gradwire.Round, comm: gradwire.Collectives) -> Tensor:
        if round.rank == self.fails_on_rank:
            raise ValueError("the codec's own words")
        mean = torch.stack(await comm.all_gather(x.half())).float().mean(0)
        if round.rank == self.differs_on_rank:
            mean[0] += 1
        return mean[1:] if self.shortens else mean


def model_and_data(rank: int) -> tuple[DistributedDataParallel, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 1))
    truth = torch.randn(40, 1)
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(1 + rank))
    return DistributedDataParallel(model, bucket_cap_mb=0.005), x, x @ truth


def train(
    rank: int, size: int, steps: int, codec: str, topology: str, options: dict[str, Any]
) -> tuple[list[float], bytes, int]:
    """Every step's loss, the weights after the last one, and the bytes sent."""
    model, x, y = model_and_data(rank)
    synchronizer = gradwire.attach(model, codec=codec, topology=topology, check_hashes=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    sent = synchronizer.world.traffic[rank].total
    synchronizer.world.close()
    return losses, weights.numpy().tobytes(), sent


def attach_twice(rank: int, size: int) -> str:
    model, _, _ = model_and_data(rank)
    first = gradwire.attach(model)
    try:
        gradwire.attach(model)
    except RuntimeError as error:
        return str(error)
    finally:
        first.world.close()
    return ""


def refusals(rank: int, size: int) -> list[str]:
    """What attach() says to wrong arguments, in order."""
    model, _, _ = model_and_data(rank)
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (model, {"codec": "zip"}),
        (model.module, {}),
        (model, {"codec": gradwire.make_codec("fp32"), "bits": 4}),
        (model, {"codec": "dynamiq", "bits": 0.1}),
        (model, {"codec": "bf16", "topology": "star"}),
    ]
    said = []
    for target, arguments in wrong:
        try:
            gradwire.attach(target, **arguments)
        except ValueError as error:
            said.append(str(error))
    return said


def fail(rank: int, size: int, options: dict[str, Any]) -> tuple[str, str]:
    """What backward() raises, and the original error with its traceback."""
    model, x, y = model_and_data(rank)
    synchronizer = gradwire.attach(model, codec="halves", timeout_s=3, check_hashes=True, **options)
    try:
        nn.functional.mse_loss(model(x), y).backward()
    except RuntimeError as error:
        surfaced = type(error).__name__
    else:
        return "nothing", ""
    try:
        synchronizer.raise_error()
    except Exception as error:
        return surfaced, "".join(traceback.format_exception(error))
    finally:
        synchronizer.world.close()
    return surfaced, "nothing"
