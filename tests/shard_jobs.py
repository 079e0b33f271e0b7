"""FSDP2 training with `gradwire.shard_hooks`, on pool workers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import runpy
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from attach_jobs import Net, data, said
from attach_parameters_jobs import in_child
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.library.shard_gradients import GradientSlices
from gradwire.harness.timing.trace.step import WEIGHTS

SDP4BIT = {"codec": "all_to_all", "weights": "qwd", "ranks_per_node": 2, "check_hashes": True}


def sharded(**options: Any) -> Any:
    """The model of `attach_jobs`, with one module sharded separately; its widths divide by no number of
    ranks here."""
    torch.manual_seed(0)
    model = Net()
    options = {"reshard_after_forward": False, **options}
    fully_shard(model.middle, **options)
    return fully_shard(model, **options)


def step(model: Any, optimizer: Any, rank: int, number: int) -> Tensor:
    x, y = data(rank, number)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(rank: int, size: int, steps: int, options: dict[str, Any] | None, **shard: Any) -> Any:
    """Each step's mean loss over the ranks; a digest of the weights that this rank computes with after the
    steps; the bytes sent, and those for weights. Without `options` it is plain FSDP2."""
    model = sharded(**shard)
    synchronizer = None if options is None else gradwire.shard_hooks(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for number in range(steps):
        loss = step(model, optimizer, rank, number)
        dist.all_reduce(loss)
        losses.append(float(loss) / size)
    with torch.no_grad():
        model(data(0, 0)[0])  # gathers the weights
    held = [each.detach().clone() for each in model.parameters()]
    if synchronizer is None:
        return losses, digest(held), 0, 0
    for_weights = synchronizer.world.traffic[rank].by_phase[WEIGHTS]
    synchronizer.detach()
    return losses, digest(held), synchronizer.bytes_sent, for_weights


def digest(tensors: Any) -> str:
    plain = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    return hashlib.sha256(
        b"".join(each.detach().clone().float().numpy().tobytes() for each in plain)
    ).hexdigest()


def bf16(rank: int, size: int, options: dict[str, Any]) -> Any:
    return train(rank, size, 4, options, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def scattered_alike(rank: int, size: int, codec: dict[str, Any]) -> bool:
    """True if the shard of gradients that FSDP2 gets is the one that the codec leaves in a virtual world."""
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(64, 64 * size, bias=False), reshard_after_forward=False)
    with gradwire.shard_hooks(model, **codec, ranks_per_node=2):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
        model(x).square().mean().backward()
        own = model.weight.grad.to_local().flatten()
    raw = []
    torch.manual_seed(0)
    plain = nn.Linear(64, 64 * size, bias=False)
    for other in range(size):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(other))
        plain.zero_grad()
        plain(x).square().mean().backward()
        raw.append(plain.weight.grad.flatten().clone())
    fabric = Fabric(lambda n: make_schedule("ring", n), num_nodes=size // 2)
    world = VirtualWorld(size, fabric, torch.device("cpu"))
    made = make_codec(**{"name" if key == "codec" else key: value for key, value in codec.items()})
    slices = GradientSlices(made, make_schedule("ring", size).kept, "model", own.numel(), world.device)

    def scatter(other: int) -> Any:
        this_round = gradwire.Round(0, slices.layout, other, size, 0, 0)
        with slices.placed(raw[other]) as x:
            return lambda comm: made.scatter(x, this_round, comm)

    found = world.run({other: scatter(other) for other in range(size)})
    return torch.equal(found[rank][: own.numel()], own)


def resume(rank: int, size: int, options: dict[str, Any], evaluate: bool) -> tuple[str, str]:
    """Digests of the weights after six steps, undisturbed and resumed from files after three."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    synchronizer = gradwire.shard_hooks(model, **options)
    for number in range(3):
        step(model, optimizer, rank, number)
    if evaluate:
        with torch.no_grad():
            model(data(rank, 9)[0])
    file = io.BytesIO()
    torch.save(synchronizer.state_dict(), file)
    main = [each.to_local().clone() for each in model.state_dict().values()]
    for number in range(3, 6):
        step(model, optimizer, rank, number)
    undisturbed = digest(model.state_dict().values())
    synchronizer.detach()

    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    synchronizer = gradwire.shard_hooks(model, **options)
    with torch.no_grad():
        for own, value in zip(model.parameters(), main, strict=True):
            own.to_local().copy_(value)
    file.seek(0)
    synchronizer.load_state_dict(lambda: torch.load(file, weights_only=True))
    assert synchronizer.step == 3
    for number in range(3, 6):
        step(model, optimizer, rank, number)
    synchronizer.detach()
    return undisturbed, digest(model.state_dict().values())


def skip(rank: int, size: int) -> tuple[bool, bool, str]:
    """Tests that feedback remembers something, and the same after a step that was skipped. Returns both
    answers, and the error for skipping it again."""
    model = sharded()
    with gradwire.shard_hooks(model, codec="linear", bits=4, ef=True) as synchronizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step(model, optimizer, rank, 0)
        before = synchronizer.state_dict()
        step(model, optimizer, rank, 1)
        synchronizer.skip_step()
        after = synchronizer.state_dict()
        remembered = [key for key in before if key.startswith("codec/")]
        alike = all(torch.equal(before[key], after[key]) for key in remembered)
        return bool(remembered), alike, said(synchronizer.skip_step)


def interrupted(rank: int, size: int) -> tuple[str, bool, list[int]]:
    """The script's own error in a backward pass that has scattered one of two modules; whether feedback
    remembers what it did before; the numbers of steps before, after, and after another pass."""
    model = sharded()
    with gradwire.shard_hooks(model, codec="linear", bits=4, ef=True) as synchronizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step(model, optimizer, rank, 0)
        before = synchronizer.state_dict()
        steps = [synchronizer.step]

        def fail(gradient: Tensor) -> None:
            raise ValueError("the script's own words")

        def fail_backward(module: nn.Module, inputs: Any, output: Tensor) -> None:
            output.register_hook(fail)

        handle = model.first.register_forward_hook(fail_backward)
        words = said(step, model, optimizer, rank, 1)
        handle.remove()
        model.reset_iter_state()
        after = synchronizer.state_dict()
        steps.append(synchronizer.step)
        step(model, optimizer, rank, 2)
        steps.append(synchronizer.step)
        remembered = [key for key in before if key.startswith("codec/")]
        alike = bool(remembered) and all(torch.equal(before[key], after[key]) for key in remembered)
        return words, alike, steps


def scattered_twice(rank: int, size: int) -> str:
    """The error of a pass in which FSDP2 scatters a module's gradients twice."""
    model = sharded()
    with gradwire.shard_hooks(model, codec="fp32") as synchronizer:
        scatter = synchronizer._step.scatter

        def twice(*arguments: Any) -> None:
            scatter(*arguments)
            scatter(*arguments)

        with mock.patch.object(synchronizer._step, "scatter", twice):
            return said(step, model, torch.optim.SGD(model.parameters()), rank, 0)


def alone(rank: int, size: int) -> str:
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("each", "one"))
    return said(gradwire.shard_hooks, sharded(mesh=mesh["one"]), codec="fp32")


def refused_by_one(rank: int, size: int) -> str:
    """The error on this rank of one of two groups: in the first, rank 0 alone gives options that are refused,
    in the second, the last of four ranks a model."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("apart", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=torch.float16 if rank == 3 else torch.float32)
    model = sharded(mesh=mesh["shard"], mp_policy=policy)
    weights = "qwd4" if rank == 0 else "qwd"
    return said(gradwire.shard_hooks, model, codec="fp32", weights=weights, timeout_s=5.0)


def detached_is_plain(rank: int, size: int) -> bool:
    """True if a model trains as without hooks after they were detached, also where closing the connections
    failed."""
    found = []
    for hooked in (True, False):
        model = sharded()
        if hooked:
            gradwire.shard_hooks(model, codec="dynamiq").detach()
            synchronizer = gradwire.shard_hooks(model, codec="dynamiq")
            with mock.patch.object(synchronizer.world, "close", side_effect=OSError("not closed")):
                assert said(synchronizer.detach) == "OSError: not closed"
            synchronizer.world.close()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step(model, optimizer, rank, 0)
        found.append(digest(model.state_dict().values()))
    return found[0] == found[1]


def refusals(rank: int, size: int) -> list[str]:
    """The errors for models and arguments that cannot work."""
    model = sharded()
    hooks = gradwire.shard_hooks
    half = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
    hooked = sharded()
    synchronizer = hooks(hooked, codec="fp32")
    found = [
        said(hooks, hooked, codec="fp32"),
        said(hooks, fully_shard(nn.Linear(4, 4).double()), codec="fp32"),
        said(hooks, fully_shard(nn.Linear(4, 4).double()), codec="fp32", weights="qwd"),
        said(hooks, Net(), codec="fp32"),
        said(hooks, model, codec="powersgd"),
        said(hooks, model, codec="fp32", topology="broadcast"),
        said(hooks, model, codec="fp32", exclude=["*bias"]),
        said(hooks, model, codec="fp32", weights="qwd4"),
        said(hooks, model, codec="all_to_all", ranks_per_node=3),
        said(hooks, half, codec="fp32", weights="qw"),
        said(hooks, model, codec="fp32", weight_group=2048 + rank, weights="qw"),
        said(hooks, model, codec="fp32", seed=rank),
        said(gradwire.attach, model),
        said(hooks, model, codec="fp32", weight_bits=8),
    ]
    synchronizer.detach()
    return found


def divided(rank: int, size: int, codec: str) -> list[bool]:
    """Tests that gradients divided by 3 instead of the number of ranks are those of the mean, times ranks and
    by 3; FSDP2 on its own can do that on GPUs alone. With sums, too, and for one module."""
    found = []
    for factor, forced in ((None, False), (3.0, False), (3.0, True), (float(size), False)):
        model = sharded()
        if factor is not None:
            model.set_gradient_divide_factor(factor)
        model.set_force_sum_reduction_for_comms(forced)
        with gradwire.shard_hooks(model, codec=codec):
            nn.functional.mse_loss(model(data(rank, 0)[0]), data(rank, 0)[1]).backward()
            found.append(model.last.weight.grad.to_local() * (1 if factor is None else factor / size))
    return [bool(torch.allclose(each, found[0], rtol=1e-6, atol=0)) for each in found[1:]]


def fail(rank: int, size: int) -> tuple[str, str, str]:
    """The error of a pass in which the codec fails on one rank, its cause, and the error of the next call."""
    model = sharded()
    synchronizer = gradwire.shard_hooks(model, codec="fp32", timeout_s=5.0)
    if rank == 1:
        synchronizer._step.codec = make_codec("topk")  # its scatter raises
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = said(step, model, optimizer, rank, 0)
    cause = said(synchronizer.raise_error)
    second = said(synchronizer.state_dict)
    synchronizer.detach()
    return first, cause, second


def forked(rank: int, size: int) -> list[str]:
    """The errors in children of a rank, and then the outcome on the rank itself."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gradwire.shard_hooks(model, codec="fp32") as synchronizer:
        tries: list[Any] = [
            lambda: step(model, optimizer, rank, 0),
            synchronizer.state_dict,
            synchronizer.detach,
        ]
        found = [in_child(each) for each in tries]
        return [*found, said(step, model, optimizer, rank, 0)]


def damaged(rank: int, size: int) -> list[str]:
    """The key of a tensor made infinite, and the errors of loading that state and the good one."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gradwire.shard_hooks(model, codec="fp32", weights="qwd") as synchronizer:
        step(model, optimizer, rank, 0)
        state = synchronizer.state_dict()
        key = next(each for each in state if each.startswith("weights/"))
        bad = state | {key: torch.full_like(state[key], torch.inf)}
        return [key, said(synchronizer.load_state_dict, bad), said(synchronizer.load_state_dict, state)]


def reshard_later(rank: int, size: int) -> bool:
    """True if training is the same when weights are given away after forward from the second step on."""
    found = []
    for later in (False, True):
        model = sharded()
        with gradwire.shard_hooks(model, codec="fp32", weights="qwd"):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for number in range(3):
                step(model, optimizer, rank, number)
                model.set_reshard_after_forward(later)
            found.append(digest(model.state_dict().values()))
    return found[0] == found[1]


def gathered_again(rank: int, size: int) -> tuple[list[int], bool, bool]:
    """The bytes of gatherings: the first, one of unchanged weights, one after an update; whether the weights
    of the second are those of the first; and whether weights that the script replaces then are gathered
    exactly."""
    model = sharded()
    with gradwire.shard_hooks(model, codec="fp32", weights="qwd", weight_group=32) as synchronizer:
        sent, held = [], []
        for number in range(3):
            before = synchronizer.bytes_sent
            with torch.no_grad():
                model(data(rank, 0)[0])
            sent.append(synchronizer.bytes_sent - before)
            held.append(digest(model.parameters()))
            model.reshard()
            model.middle.reshard()
            if number == 1:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
                step(model, optimizer, rank, 0)
        with torch.no_grad():
            for each in model.parameters():
                each.to_local().mul_(3)  # as loading a checkpoint would
            replaced = digest(each.full_tensor() for each in model.parameters())
            model(data(rank, 0)[0])
        return sent, held[0] == held[1] != held[2], digest(model.parameters()) == replaced


def run_example(rank: int, size: int, path: str) -> str:
    """The output of an example, in the process group of the pool."""
    printed = io.StringIO()
    with (
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
        contextlib.redirect_stdout(printed),
    ):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()
