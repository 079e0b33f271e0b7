"""Plain DistributedDataParallel training with `gradwire.attach`, on pool workers."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs.wording import as_python
from gradwire.harness.library import ddp_internals


@gradwire.register_codec
@dataclass
class Halves(gradwire.Codec):
    """A codec from outside: all ranks' float16 values, averaged in rank order."""

    name: str = "halves"
    fails_on_rank: int = -1
    differs_on_rank: int = -1
    shortens: bool = False

    async def synchronize(self, x: Tensor, this_round: gradwire.Round, comm: gradwire.Collectives) -> Tensor:
        if this_round.rank == self.fails_on_rank:
            raise ValueError("the codec's own words")
        mean = torch.stack(await comm.all_gather(x.half())).float().mean(0)
        if this_round.rank == self.differs_on_rank:
            mean[0] += 1
        return mean[1:] if self.shortens else mean


class Scaled(gradwire.Codec):
    """A codec from outside that is not a dataclass."""

    name = "scaled"

    def __init__(self, factor: Any) -> None:
        self.factor, self._calls = factor, 0

    async def synchronize(self, x: Tensor, this_round: gradwire.Round, comm: gradwire.Collectives) -> Tensor:
        self._calls += 1
        return torch.stack(await comm.all_gather(x * self.factor)).mean(0) / self.factor


class Net(nn.Module):
    """A model whose gradients get ready in another order than its parameters; several buckets of 5 kB."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(32, 1), nn.Linear(64, 32), nn.Linear(40, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def wrapped(model: nn.Module | None = None, **ddp: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(model or Net(), **{"bucket_cap_mb": 0.005, **ddp})


def model_and_data(rank: int) -> tuple[DistributedDataParallel, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 1))
    truth = torch.randn(40, 1)
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(1 + rank))
    return DistributedDataParallel(model, bucket_cap_mb=0.005), x, x @ truth


def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + rank))
    return x, x[:, :1].sin()


def weights(model: nn.Module) -> bytes:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().tobytes()


def gradients(model: nn.Module) -> bytes:
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([gradient.flatten() for gradient in found]).numpy().tobytes()


def said(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The type and text of the error that `function` raises."""
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def run_steps(model: nn.Module, steps: range, rank: int, lr: float = 0.05) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in steps:
        x, y = data(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


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
    assert synchronizer.step == steps
    synchronizer.detach()
    return losses, weights(model), synchronizer.bytes_sent


PLANNED: list[tuple[str, Any, str]] = [
    ("floor", 0.25, "0.125"),
    ("margin_s", 0.5, "0.02"),
    ("gain", 0.5, "0.3"),
    ("rate_gain", 0.5, "0.7"),
    ("step_bits", 4, "8"),
    ("leftovers", "requantized", "kept"),
]
"""Settings of AQGB's plan, which fixed bits replace, and their defaults."""

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"codec": "zip"}, "codec=zip is unknown"),
    ({"codec": "dynamic"}, "did you mean dynamiq"),
    ({"codec": None}, "codec=None is not a codec"),
    ({"codec": Halves}, "codec=Halves is a class"),
    ({"codec": gradwire.make_codec("fp32"), "bits": 4}, "['bits'] have no effect on a codec instance"),
    ({"bits": 0.1}, "codec.bits=0.1: choose"),
    ({"bits": "4"}, "codec.bits='4': choose"),
    ({"bits": float("nan")}, "codec.bits=nan: choose"),
    ({"bitz": 4}, "bitz=4: codec=dynamiq has no such option; did you mean bits"),
    ({"bucket": 3}, "did you mean buckets"),
    ({"name": "thc"}, "name='thc': codec=dynamiq has no such option"),
    ({"ef": "yes"}, "codec.ef='yes': choose True or False"),
    ({"exclude": 3}, "codec.exclude"),
    ({"codec": "bf16", "topology": "star"}, "topology=star: choose one of broadcast, butterfly, ring"),
    ({"topology": None}, "topology=None is not a topology"),
    ({"topology": lambda size: size}, "gives no Schedule of 2 ranks: 2"),
    ({"seed": -1}, "seed=-1: choose a whole number from 0"),
    ({"seed": 0.5}, "seed=0.5: choose a whole number"),
    ({"seed": True}, "seed=True: choose a whole number"),
    ({"overlap": "no"}, "overlap='no': choose True or False"),
    ({"check_hashes": 1}, "check_hashes=1: choose True or False"),
    ({"graphs": "sometimes"}, "graphs='sometimes': choose one of auto, always, never"),
    ({"graphs": "always"}, "graphs='always': CUDA graphs need ranks on GPUs, and these are on cpu"),
    ({"buckets": 0}, "buckets=0: choose a whole number"),
    ({"buckets": 2.0}, "buckets=2.0: choose a whole number"),
    ({"segments": 0}, "segments=0: choose a whole number"),
    ({"timeout_s": 0}, "timeout_s=0: choose a number"),
    ({"timeout_s": float("nan")}, "timeout_s=nan: choose a number"),
    ({"timeout_s": float("inf")}, "timeout_s=inf: choose a number"),
    ({"timeout_s": "long"}, "timeout_s='long': choose a number"),
    ({"rate_mbit": -5}, "rate_mbit=-5: choose a number"),
    ({"rate_mbit": 0}, "rate_mbit=0: choose a number"),
    ({"rate_mbit": float("nan")}, "rate_mbit=nan: choose a number"),
    ({"rate_mbit": 1e-320}, "rate_mbit=1e-320: choose a number"),
    ({"rate_mbit": "fast"}, "rate_mbit='fast': choose a number"),
    (
        {"codec": "backend", "rate_mbit": 8.0},
        "rate_mbit=8.0 has no effect with codec=backend; the backend sends",
    ),
    (
        {"codec": "backend", "segments": 4},
        "segments=4 has no effect with codec=backend; the backend sends its own messages",
    ),
    ({"codec": "aqgb", "floor": 0.25}, "which waits for that, or codec.bits=8, which refines nothing"),
    ({"codec": "aqgb", "bits": 8}, "add topology=broadcast"),
    *(
        (
            {"codec": "aqgb", "bits": 8, "topology": "broadcast", name: value},
            f"codec.{name}={as_python(value)}: choose one of {allowed} (codec.bits=8 replaces AQGB's plan",
        )
        for name, value, allowed in PLANNED
    ),
    (
        {"codec": "aqgb", "bits": 8, "topology": "broadcast", "rounding": "stochastic"},
        "codec.rounding='stochastic': choose one of truncate (what base=embedded rounds up",
    ),
    (
        {"codec": "aqgb", "bits": 8, "topology": "broadcast", "scale": "none"},
        "codec.scale='none': choose one of block (base=embedded has a scale for every block",
    ),
    ({"codec": "backend", "topology": "butterfly"}, "topology=butterfly has no effect with codec=backend"),
    ({"codec": "backend", "buckets": 3}, "buckets=3 has no effect with codec=backend"),
]
"""Arguments that every rank refuses on its own, and a part of the message."""


def refusals(rank: int, size: int) -> list[str]:
    """The errors of attach() for each of WRONG, on a model that stays usable."""
    model = wrapped()
    found = [said(gradwire.attach, model, **arguments) for arguments, _ in WRONG]
    gradwire.attach(model, codec="fp32").detach()
    return [_without_codecs_of_tests(text) for text in found]


def _without_codecs_of_tests(text: str) -> str:
    """`text`, where it lists all codecs, without those that tests have registered in this process."""
    for name, codec in gradwire.codec_classes().items():
        if not codec.__module__.startswith("gradwire."):
            text = text.replace(f", {name},", ",")
    return text


def _mixed() -> Net:
    """A model with some parameters in another dtype."""
    model = Net()
    model.middle.double()
    return model


def wrong_models(rank: int, size: int) -> list[str]:
    """attach()'s errors for models that it cannot take; each names a remedy."""
    taken = wrapped()
    first = gradwire.attach(taken)
    shared = gradwire.make_codec("onebit", ef=True)
    other = gradwire.attach(wrapped(), shared)
    found = [
        said(gradwire.attach, Net()),
        said(gradwire.attach, torch.compile(wrapped())),
        said(gradwire.attach, "model"),
        said(gradwire.attach, taken),
        said(gradwire.attach, wrapped(), shared),
        said(gradwire.attach, wrapped(nn.Sequential(nn.Embedding(9, 4, sparse=True)))),
        said(gradwire.attach, wrapped(nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64)))),
        said(gradwire.attach, wrapped(Net().double())),
        said(gradwire.attach, wrapped(_mixed()), "mxfp8"),
        said(gradwire.attach, wrapped(Net()), "dynamiq", bits=3, ef=True),
    ]
    found.append(said(gradwire.attach, wrapped(Net().double()), "fp32"))
    found.append(said(gradwire.attach, wrapped(nn.Linear(4, 4)), "lattice"))
    first.detach()
    other.detach()
    gradwire.attach(wrapped(), shared).detach()  # free again
    return found


def with_ignored_parameters(rank: int, size: int) -> tuple[str, bool]:
    """attach()'s answer, and whether the trained parameters stay equal, if DDP ignores parameters that no
    codec takes, among them one with a different shape on each rank."""
    model = Net()
    double, complex_ = nn.Linear(3 + rank, 1, dtype=torch.float64), nn.Linear(2, 2, dtype=torch.complex64)
    model.own = nn.ModuleList([double, complex_, nn.Embedding(9, 4, sparse=True)])
    ignored = [name for name, _ in model.named_parameters() if name.startswith("own.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    ddp = wrapped(model)
    text = said(gradwire.attach, ddp, "thc", timeout_s=20)
    if text == "nothing":
        run_steps(ddp, range(2), rank)
    everybodys: list[Any] = [None] * size
    torch.distributed.all_gather_object(everybodys, weights(model.first))
    return text, len({*everybodys}) == 1


def asked_about(rank: int, size: int, ddp: dict[str, Any]) -> tuple[Any, Any, str]:
    """The buckets that attach() plans, those that DDP makes, and attach()'s error for a codec whose
    buckets have at most 2,600 coordinates."""
    limited = Halves()
    limited.supports = lambda topology, size, layout: (  # type: ignore[method-assign]
        f"{layout.numel} coordinates" if 2600 < layout.numel < 10**6 else None
    )
    model = wrapped(_mixed(), **ddp)
    made = ddp_internals.current_buckets(model)
    return ddp_internals.first_buckets(model)[::-1], made, said(gradwire.attach, model, limited)


def models_of_other_kinds(rank: int, size: int) -> list[str]:
    """attach()'s errors for models sharded by FSDP, in both its forms, and for DDP's reducer in Python."""
    whole, parts = FullyShardedDataParallel(Net(), device_id=torch.device("cpu")), Net()
    fully_shard(parts, mesh=init_device_mesh("cpu", (size,)))
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        reduced = wrapped()
    found = [said(gradwire.attach, model, timeout_s=20) for model in (whole, parts, reduced)]
    gradwire.attach(wrapped(), codec="fp32").detach()
    return found


def disagree(
    rank: int, size: int, cases: list[tuple[dict[str, Any], dict[str, Any]]], odd: int
) -> list[tuple[str, float]]:
    """The errors, and after how many seconds, if rank `odd` has the second arguments of each case."""
    model, found = wrapped(), []
    for usual, other in cases:
        begin = time.monotonic()
        arguments = {"timeout_s": 20.0, **(other if rank == odd else usual)}
        text = said(gradwire.attach, model, **arguments)
        found.append((text, time.monotonic() - begin))
    gradwire.attach(model, codec="fp32").detach()
    return found


def other_models(rank: int, size: int) -> list[str]:
    """Ranks that attach two models in different orders, and one whose model is wrapped otherwise."""
    small, large = wrapped(nn.Linear(40, 1)), wrapped()
    capped = wrapped(gradient_as_bucket_view=rank == 1)
    return [
        said(gradwire.attach, small if rank else large, timeout_s=20),
        said(gradwire.attach, capped, timeout_s=20),
    ]


def absent(rank: int, size: int) -> tuple[str, float]:
    """The other ranks' errors if the last rank does not attach, and after how many seconds."""
    model = wrapped()
    begin = time.monotonic()
    text = "" if rank == size - 1 else said(gradwire.attach, model, timeout_s=1)
    waited = time.monotonic() - begin
    torch.distributed.barrier()
    if rank == size - 1:  # too late: fails at once, since the others have left
        text = said(gradwire.attach, model, timeout_s=1)
        waited = time.monotonic() - begin
    torch.distributed.barrier()
    return text, waited


def refused_by_the_first(rank: int, size: int, first: dict[str, Any]) -> tuple[str, float, float]:
    """The errors if rank 0 has other arguments and the others come later; when each rank came and left."""
    model = wrapped()
    torch.distributed.barrier()
    if rank:
        time.sleep(0.3)
    begin = time.monotonic()
    text = said(gradwire.attach, model, timeout_s=20, **({} if rank else first))
    return text, begin, time.monotonic()


def refused_and_absent(rank: int, size: int) -> tuple[str, float]:
    """The first rank's error, and after how many seconds, if the second rank refuses and the third does not
    come."""
    model = wrapped()
    begin = time.monotonic()
    text = "" if rank == size - 1 else said(gradwire.attach, model, bits=4 if rank == 0 else 99, timeout_s=60)
    waited = time.monotonic() - begin
    torch.distributed.barrier()
    return text, waited


def fail(rank: int, size: int, options: dict[str, Any], ddp: Mapping[str, Any]) -> tuple[str, str]:
    """The error that backward() raises, and the original one with its traceback."""
    model = wrapped(**ddp)
    with gradwire.attach(model, codec="halves", timeout_s=3, check_hashes=True, **options) as synchronizer:
        surfaced = said(run_steps, model, range(2), rank)
        try:
            synchronizer.raise_error()
        except Exception as error:
            return surfaced, "".join(traceback.format_exception(error))
    return surfaced, "nothing"


class Failing(Scaled):
    """Raises in one step, on every rank."""

    async def synchronize(self, x: Tensor, this_round: gradwire.Round, comm: gradwire.Collectives) -> Tensor:
        if this_round.step == self.factor:
            raise ValueError("the codec's own words")
        return await super().synchronize(x, this_round, comm)


def fail_again(
    rank: int, size: int, ddp: Mapping[str, Any], at: int
) -> tuple[str, dict[str, str], bool, bool]:
    """The error of a pass that fails at step `at`, later errors and where they are raised, whether the model
    can still be evaluated, and whether it trains on as plain DDP does once it is detached."""
    model, plain = wrapped(**ddp), wrapped(**ddp)
    with gradwire.attach(model, Failing(at), timeout_s=3) as synchronizer:
        run_steps(model, range(at), rank, lr=0.0)
        x, y = data(rank, 0)
        loss = nn.functional.mse_loss(model(x), y)
        first = said(loss.backward, retain_graph=True)
        after = {
            "backward": said(loss.backward, retain_graph=True),
            "forward": said(model, x),
            "forward again": said(model, x),
            "state_dict": said(synchronizer.state_dict),
            "measure_vnmse": said(synchronizer.measure_vnmse),
        }
        with model.no_sync():
            after["no_sync"] = said(model, x)
        with torch.no_grad():
            evaluated = model(x).isfinite().all().item()
    model.zero_grad()
    for each in (model, plain):
        run_steps(each, range(2), rank)
    return first, after, evaluated, weights(model) == weights(plain)
