"""PowerSGD on every rank of an in-process world, and on pool workers next to torch's own hook."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from powersgd_reference import Matrix, as_matrix
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket  # the annotation that register_comm_hook requires
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from world_steps import run_collectives

import gradwire
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.powersgd import PowerSGD, random_directions
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Submission
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")
SEED = 7
FIRST_COMPRESSED = 2
"""The first step in which torch's hook compresses, because DDP rebuilds its buckets after the first pass."""

Gradients = Mapping[str, Tensor]
"""Parameter name to gradient, in the parameter's shape."""

_groups: list[Any] = []
"""The process group of torch's latest training. Gloo's threads release it shortly after the last all-reduce;
theirs must not be the last reference, or the group would wait for its own thread to end."""

SHAPES = {
    "first.weight": (24, 40),
    "first.bias": (24,),
    "conv.weight": (16, 3, 5, 5),
    "last.weight": (24, 40),
}

BUCKETS = [["last.weight", "first.bias"], ["conv.weight", "first.weight"]]
MATRICES = [name for name, shape in SHAPES.items() if len(shape) > 1]


def start_of(name: str, rank: int, step: int) -> Matrix:
    """The random Q, (columns, rank), of one of `SHAPES`."""
    this_round = Round(step, Layout.flat(1), 0, 2, SEED)
    return as_matrix(random_directions(name, range(rank), math.prod(SHAPES[name][1:]), this_round).T)


def layout_of(gradients: Gradients) -> Layout:
    sizes = [gradient.numel() for gradient in gradients.values()]
    offsets = tuple(sum(sizes[:i]) for i in range(len(sizes)))
    shapes = tuple(tuple(gradient.shape) for gradient in gradients.values())
    dtype = next(iter(gradients.values())).dtype
    return Layout(tuple(gradients), shapes, offsets, sum(sizes), dtype)


def flat(gradients: Gradients, names: Sequence[str]) -> tuple[Tensor, Layout]:
    """A bucket of the named parameters."""
    chosen = {name: gradients[name] for name in names}
    return torch.cat([gradient.reshape(-1) for gradient in chosen.values()]), layout_of(chosen)


class Cluster:
    """`size` ranks with a codec each; `step()` synchronizes a step's buckets, two in flight at once."""

    def __init__(self, size: int, topology: str = "ring", **options: Any) -> None:
        self.codecs = [PowerSGD(**options) for _ in range(size)]
        self.world = VirtualWorld(size, Fabric(lambda n: make_schedule(topology, n)), CPU, debug=True)
        self.steps = 0

    def step(self, by_rank: Sequence[Gradients], buckets: Sequence[Sequence[str]] = ()) -> dict[str, Tensor]:
        """The means, the same bits on all ranks; `buckets` are lists of names, one of all by default."""
        parts = buckets or [list(by_rank[0])]
        layouts = [layout_of({name: by_rank[0][name] for name in names}) for names in parts]
        collectives = {
            rank: [
                self._synchronization(rank, index, layout, gradients) for index, layout in enumerate(layouts)
            ]
            for rank, gradients in enumerate(by_rank)
        }
        results = run_collectives(self.world, collectives)
        for codec in self.codecs:
            codec.end_step(self.steps)
        self.steps += 1
        for rank in range(1, len(by_rank)):
            for own, other in zip(results[rank], results[0], strict=True):
                assert torch.equal(as_bytes(own), as_bytes(other))
        return {
            name: values.view(shape)
            for mean, layout in zip(results[0], layouts, strict=True)
            for name, shape, values in zip(
                layout.names,
                layout.shapes,
                mean.split([torch.Size(s).numel() for s in layout.shapes]),
                strict=True,
            )
        }

    def _synchronization(self, rank: int, index: int, layout: Layout, gradients: Gradients) -> Any:
        x, _ = flat(gradients, layout.names)
        this_round = Round(self.steps, layout, rank, len(self.codecs), SEED, index)
        return synchronization(self.codecs[rank], x, this_round, check_hashes=True)

    def sent(self) -> int:
        """Bytes by all ranks in all steps so far, those of the hashes not counted."""
        return sum(sum(traffic.by_phase.values()) for traffic in self.world.traffic.values())

    def errors(self, name: str) -> list[Tensor]:
        """The error kept of a parameter, by rank."""
        return [codec.state_dict()[f"error/{name}"] for codec in self.codecs]


def as_bytes(tensor: Tensor) -> Tensor:
    """A NaN equals the same NaN."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def gradients_of(
    workers: int, step: int = 0, shapes: Mapping[str, tuple[int, ...]] = SHAPES, scale: float = 1e-2
) -> list[dict[str, Tensor]]:
    """Gradients by rank: a common part with falling singular values, and noise."""
    generator = torch.Generator().manual_seed(step)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator)

    common = {}
    for name, shape in shapes.items():
        flat = draw((shape[0], torch.Size(shape).numel() // shape[0]))
        common[name] = (flat * 0.7 ** torch.arange(flat.shape[1])).view(shape)
    return [
        {name: scale * (common[name] + 0.3 * draw(shape)) for name, shape in shapes.items()}
        for _ in range(workers)
    ]


def step_really(rank: int, size: int, topology: str, options: dict[str, Any], steps: int) -> list[Tensor]:
    """Some steps of one rank over gloo, two buckets in flight: every step's means, bucket by bucket."""
    world = ProcessWorld(Fabric(lambda n: make_schedule(topology, n)), CPU, Connections(timeout_s=30))
    codec, means = PowerSGD(**options), []
    try:
        for step in range(steps):
            gradients, futures = gradients_of(size, step)[rank], []
            for index, names in enumerate(BUCKETS):
                x, layout = flat(gradients, names)
                this_round = Round(step, layout, rank, size, SEED, index)
                futures.append(Future[Tensor]())
                collective = synchronization(codec, x, this_round, check_hashes=True)
                world.submit(collective, Submission(str(layout.uid), 0), futures[-1])
            means += [future.result(30) for future in futures]
        return means
    finally:
        world.close()


def _model(rank: int) -> tuple[DistributedDataParallel, Tensor, Tensor]:
    """Two layers of one shape, biases, a convolution, in more than one bucket.

    The gradients are of full rank. For a dependent column torch's Gram–Schmidt would normalize rounding noise
    to a vector that is not orthogonal to the others, and its result would be wrong.
    """
    torch.manual_seed(0)
    body = [nn.Linear(36, 36), nn.Tanh(), nn.Linear(36, 36), nn.Tanh(), nn.Unflatten(1, (4, 3, 3))]
    model = nn.Sequential(*body, nn.Conv2d(4, 12, 3), nn.Flatten(), nn.Tanh(), nn.Linear(12, 1))
    truth = torch.randn(36, 1)
    x = torch.randn(64, 36, generator=torch.Generator().manual_seed(1 + rank))
    return DistributedDataParallel(model, bucket_cap_mb=0.004), x, (x @ truth).tanh()


def _train(model: DistributedDataParallel, x: Tensor, y: Tensor, steps: int) -> list[Tensor]:
    """All parameters as one vector after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        history.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    return history


def train_ours(rank: int, size: int, steps: int, topology: str, options: dict[str, Any]) -> list[Tensor]:
    model, x, y = _model(rank)
    codec = PowerSGD(start_step=FIRST_COMPRESSED, **options)
    synchronizer = gradwire.attach(model, codec=codec, topology=topology, seed=SEED, check_hashes=True)
    try:
        return _train(model, x, y, steps)
    finally:
        synchronizer.world.close()


def train_torch(rank: int, size: int, steps: int, options: dict[str, Any]) -> tuple[list[Tensor], int]:
    """Trains with torch's own hook, which begins with our Q; also returns the number of its buckets."""
    model, x, y = _model(rank)
    _groups[:] = [dist.group.WORLD]
    state = PowerSGDState(None, start_powerSGD_iter=FIRST_COMPRESSED, **options)
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}

    def hook(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if state.iter == FIRST_COMPRESSED:
            _give_start(state, bucket, [names[id(parameter)] for parameter in bucket.parameters()], size)
        future = powerSGD_hook(state, bucket)
        future.wait()  # over gloo the all-reduces of two buckets may meet in another order on another rank
        return future

    model.register_comm_hook(state, hook)
    return _train(model, x, y, steps), len(state.q_memory_dict)


def _give_start(state: PowerSGDState, bucket: GradBucket, names: list[str], size: int) -> None:
    """Fill the factors that torch's hook would draw at random, in its order: by shape, then by position."""
    by_shape: dict[tuple[int, int], list[Tensor]] = {}
    rank, numel_p = state.matrix_approximation_rank, 0
    for name, gradient in zip(names, bucket.gradients(), strict=True):
        rows, columns = gradient.view(gradient.shape[0], -1).shape
        own = min(rank, rows, columns)
        if own * (rows + columns) * state.min_compression_rate < rows * columns:
            this_round = Round(FIRST_COMPRESSED, Layout.flat(1), 0, size, SEED)
            start = random_directions(name, range(own), columns, this_round)
            by_shape.setdefault((rows, columns), []).append(start.T.flatten())
            numel_p += rows * own
    starts = [start for group in by_shape.values() for start in group]
    state.p_memory_dict[bucket.index()] = torch.empty(numel_p)
    state.q_memory_dict[bucket.index()] = torch.cat(starts) if starts else torch.empty(0)
