"""Parameters that travel in bf16: how buckets are split, and what the codec gets and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.collectives import Collectives
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.codecs.traits import Traits
from gradwire.codecs.wrappers.exclude import Exclude
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")
WORKERS = 3
Shapes = Mapping[str, tuple[int, ...]]

BLOCK: Shapes = {
    "h.0.mlp.weight": (40, 70),
    "h.0.mlp.bias": (40,),
    "wte.embedding": (90, 33),
    "h.0.ln": (33,),
}


def layout_of(shapes: Shapes) -> Layout:
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    offsets = tuple(sum(sizes[:i]) for i in range(len(sizes)))
    return Layout(tuple(shapes), tuple(shapes.values()), offsets, sum(sizes))


def gradients(numel: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(numel)
    return [torch.randn(numel, generator=generator).exp() for _ in range(WORKERS)]


def synchronize(
    codecs: list[Codec], layouts: list[Layout], step: int = 0, topology: str = "ring"
) -> tuple[list[list[Tensor]], int]:
    """Every bucket's means by rank, two buckets in flight, and the bytes rank 0 sent."""
    world = VirtualWorld(WORKERS, Fabric(lambda size: make_schedule(topology, size)), CPU, debug=True)
    xs = [gradients(layout.numel) for layout in layouts]

    def collective(rank: int, bucket: int) -> Any:
        this_round = Round(step, layouts[bucket], rank, WORKERS, 7, bucket)
        return synchronization(codecs[rank], xs[bucket][rank], this_round, check_hashes=True)

    tasks = {rank: [collective(rank, bucket) for bucket in range(len(layouts))] for rank in range(WORKERS)}
    results = run_collectives(world, tasks)
    traffic = world.traffic[0].by_phase
    return [results[rank] for rank in range(WORKERS)], sum(
        bytes_sent for phase, bytes_sent in traffic.items() if phase != "measure"
    )


def per_rank(make: Callable[[], Codec]) -> list[Codec]:
    return [make() for _ in range(WORKERS)]


@dataclass
class Witness(Codec):
    """A codec that notes its inputs; its mean is a constant."""

    name: str = "witness"
    seen: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    traits = Traits(unbiased=True, stateful=True, uses_backend=True)

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        return f"{layout.names} on {size} over {topology}"

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        assert x.numel() == this_round.layout.numel == sum(map(len, self.taken(this_round.layout, x)))
        self.seen.append((this_round.bucket, this_round.layout.names))
        return torch.full_like(x, 7.0)

    @staticmethod
    def taken(layout: Layout, x: Tensor) -> list[Tensor]:
        sizes = [torch.Size(shape).numel() for shape in layout.shapes]
        return [x[start : start + size] for start, size in zip(layout.offsets, sizes, strict=True)]

    def end_step(self, step: int) -> Mapping[str, float]:
        return {"steps": float(step)}

    def state_dict(self) -> dict[str, Tensor]:
        return {"seen": torch.tensor(len(self.seen))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.seen = [(int(state["seen"]), ())]


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("codec", ["dynamiq", "bf16", "mxfp8"])
def test_a_bucket_without_excluded_parameters_is_untouched(codec: str, topology: str) -> None:
    layouts = [layout_of(BLOCK)]
    plain, sent = synchronize(per_rank(lambda: make_codec(codec)), layouts, topology=topology)
    wrapped = per_rank(lambda: make_codec(codec, exclude=["*.nothing"]))
    same, also_sent = synchronize(wrapped, layouts, topology=topology)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, same, strict=True))
    assert sent == also_sent


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
def test_every_parameter_comes_back_where_it_was(topology: str) -> None:
    """Excluded parameters get what BF16 alone would give, all others what the codec alone would."""
    layout = layout_of(BLOCK)
    globs = ["*embed*", "*.bias"]
    codecs = per_rank(lambda: make_codec("dynamiq", exclude=globs, bits=6.0))
    means, sent = synchronize(codecs, [layout], topology=topology)
    assert all(torch.equal(mean[0], means[0][0]) for mean in means)

    excluded = [1, 2]
    x = gradients(layout.numel)
    parts = {name: Witness.taken(layout, means[0][0])[i] for i, name in enumerate(layout.names)}
    for positions, options in ((excluded, {"name": "bf16"}), ([0, 3], {"name": "dynamiq", "bits": 6.0})):
        own = layout_of({layout.names[i]: layout.shapes[i] for i in positions})
        inputs = [torch.cat([Witness.taken(layout, each)[i] for i in positions]) for each in x]
        alone = alone_with(options, own, inputs, topology)
        expected = torch.cat([parts[layout.names[i]] for i in positions])
        assert torch.equal(alone, expected)
    coordinates = [torch.Size(shape).numel() for shape in BLOCK.values()]
    in_bf16 = coordinates[1] + coordinates[2]
    if topology == "ring":
        per_coordinate = 2 * (WORKERS - 1) / WORKERS
        expected_bits = 16 * in_bf16 + 6 * (layout.numel - in_bf16)
        assert 0.9 * expected_bits < 8 * sent / per_coordinate < 1.1 * expected_bits


def alone_with(options: Mapping[str, Any], layout: Layout, inputs: list[Tensor], topology: str) -> Tensor:
    """The mean of `inputs` by an unwrapped codec."""
    world = VirtualWorld(WORKERS, Fabric(lambda size: make_schedule(topology, size)), CPU, debug=True)
    collectives = {
        rank: synchronization(
            make_codec(**options), inputs[rank], Round(0, layout, rank, WORKERS, 7), check_hashes=True
        )
        for rank in range(WORKERS)
    }
    return world.run(collectives)[0]


def test_a_bucket_of_excluded_parameters_never_reaches_the_codec() -> None:
    codecs: list[Codec] = [Exclude(Witness(), ["wte.*", "h.0.ln"]) for _ in range(WORKERS)]
    layouts = [layout_of({"wte.embedding": (50, 9), "h.0.ln": (9,)})]
    (means, *_), _ = synchronize(codecs, layouts)
    expected, _ = synchronize(per_rank(lambda: make_codec("bf16")), layouts)
    assert torch.equal(means[0], expected[0][0])
    assert int(codecs[0].state_dict()["seen"]) == 0


def test_the_codec_sees_its_part_of_each_bucket_under_the_buckets_number() -> None:
    layouts = [
        layout_of({"wte.embedding": (50, 9)}),
        layout_of({"h.1.weight": (9, 9), "h.0.bias": (9,)}),
        layout_of({"h.0.weight": (9, 9)}),
    ]
    witness = Witness()
    codec = Exclude(witness, ["*embed*", "*.bias"])
    for bucket, layout in enumerate(layouts):
        this_round = Round(0, layout, 0, WORKERS, 7, bucket)
        finish(codec.synchronize(torch.zeros(layout.numel), this_round, NoNetwork()))
    assert witness.seen == [(1, ("h.1.weight",)), (2, ("h.0.weight",))]


class NoNetwork:
    """Collectives of one rank, in which BF16's sums are its own gradients."""

    rank, size, num_chunks = 0, 1, 1

    async def all_reduce(self, hops: Any) -> Tensor:
        message = torch.empty(hops.message_bytes(range(1), 1), dtype=torch.uint8)
        hops.seal(None, range(1), message, 1, 1)
        return hops.finish()  # type: ignore[no-any-return]


def finish(coroutine: Any) -> None:
    """Runs a coroutine that never waits."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_it_speaks_for_its_codec() -> None:
    witness = Witness()
    codec = Exclude(witness, ["*.bias"])
    assert isinstance(codec, Codec)
    assert (codec.name, codec.about, codec.traits) == (witness.name, witness.about, witness.traits)
    assert codec.supports("ring", 4, layout_of(BLOCK)) == (
        "('h.0.mlp.weight', 'wte.embedding', 'h.0.ln') on 4 over ring"
    )
    assert codec.supports("ring", 4, layout_of({"h.0.mlp.bias": (3,)})) is None
    codec.load_state_dict({"seen": torch.tensor(5)})
    assert witness.seen == [(5, ())]


def test_a_glob_that_matches_nothing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    layouts = [layout_of(BLOCK), layout_of({"lm_head.weight": (4, 4)})]
    codecs = per_rank(lambda: make_codec("bf16", exclude=["*.bias", "*.biass", "lm_head*"]))
    for step in range(3):
        synchronize(codecs, layouts, step)
        for codec in codecs:
            codec.end_step(step)
    (record,) = caplog.records
    assert "gradwire: exclude: " in record.getMessage() and "*.biass" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("exclude", ["*.bias", [""], [3], 5, None])
def test_what_is_no_list_of_globs_is_refused(exclude: Any) -> None:
    with pytest.raises(ValueError, match=r"^codec.exclude=.*: choose a list of names or globs") as refused:
        make_codec("bf16", exclude=exclude)
    assert "\n" not in str(refused.value)


def test_without_globs_there_is_no_wrapper() -> None:
    assert type(make_codec("bf16", exclude=[])) is type(make_codec("bf16"))
