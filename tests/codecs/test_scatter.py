"""Every codec that scatters leaves each rank with its shard of the mean, not encoded once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from codec_rounds import CPU, MODEL, gradients, layout_of, mean_of, vnmse
from pool import Workers
from scatter_jobs import scatter_for_real, scattered
from test_every_codec import CASES
from torch import Tensor

from gradwire.codecs.collectives import Hops
from gradwire.codecs.hop_codec import HopCodec, ReportsLosses
from gradwire.codecs.interface import Round
from gradwire.codecs.registry import codec_class, make_codec
from gradwire.codecs.shards import Shard, Stretches
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld

SCATTERING = [(codec, options) for codec, options in CASES if make_codec(codec, **options).scatters]
SHAPES = [("ring", size, 1) for size in range(2, 10)] + [("butterfly", size, 1) for size in range(2, 10)]
SHAPES += [("two_level", 4, 2), ("two_level", 6, 2), ("two_level", 8, 4), ("two_level", 9, 3)]
"""Topologies, their ranks and nodes."""

OTHER_CHUNKS = {"fp32": 1e-6, "bf16": 1e-2, "lattice": 0.4}
"""The error, relative, where a scatter sums the same values in other chunks, and so in another order, or with
another step, because all of the budget is for its own messages."""

every_codec = pytest.mark.parametrize(("codec", "options"), SCATTERING, ids=lambda value: str(value))


def test_codecs_that_sum_hop_by_hop_scatter_if_they_place_their_chunks() -> None:
    scattering = {codec for codec, _ in SCATTERING}
    for name in {codec for codec, _ in CASES} - {"all_to_all", "lattice"}:
        made = codec_class(name)
        places = issubclass(made, HopCodec) and made.chunk is not HopCodec.chunk
        assert (name in scattering) == places, name
    assert {"all_to_all", "lattice"} <= scattering and not make_codec("backend").scatters
    assert not {"powersgd", "edgc", "optimus_cc", "topk", "aqgb", "only_hops"} & scattering
    with pytest.raises(ValueError, match="codec=topk has no scatter"):
        make_codec("topk").shards(MODEL, [[0], [1]])


def fabric(topology: str, nodes: int, segments: int = 1) -> Fabric:
    return Fabric(partial(make_schedule, topology), nodes, segments)


class Sealing:
    """Collectives whose reduce-scatter is followed by the last encoding and by gathering that: the mean as
    `synchronize` would give it, next to the shard that each rank gets."""

    def __init__(self, comm: ScheduledCollectives) -> None:
        self._comm, self.sealed = comm, torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def reduce_scatter(self, hops: Hops) -> Tensor:
        comm, kept = self._comm, self._comm.kept
        shard = await comm.reduce_scatter(hops)
        sizes = [[hops.message_bytes(range(c, c + 1), comm.size) for c in chunks] for chunks in kept]
        own = torch.empty(sum(sizes[comm.rank]), dtype=torch.uint8)
        for chunk, out in zip(kept[comm.rank], own.split(sizes[comm.rank]), strict=True):
            hops.seal(None, range(chunk, chunk + 1), out, 0, comm.size)
        gathered = await comm.all_gather(own, [sum(own) for own in sizes])
        for rank, message in enumerate(gathered):
            for chunk, part in zip(kept[rank], message.split(sizes[rank]), strict=True):
                if rank != comm.rank:
                    hops.decode(part, range(chunk, chunk + 1), comm.size)
        self.sealed = hops.finish()
        return shard


def sizes_for(size: int) -> int:
    """A number of coordinates for each number of ranks: fewer than ranks, odd, whole groups, super-groups."""
    return {2: 255, 3: 1, 4: 3092, 5: 4096, 6: 130, 7: 7, 8: 1000, 9: 5000}[size]


@every_codec
def test_a_shard_is_that_of_the_mean_but_for_the_last_encoding(codec: str, options: dict[str, Any]) -> None:
    for topology, size, nodes in SHAPES:
        check_shards(codec, options, topology, size, nodes)


def check_shards(codec: str, options: dict[str, Any], topology: str, size: int, nodes: int) -> None:
    """Seals every rank's shard and compares it with the mean: bit for bit, where chunks are the same."""
    layout = layout_of({"a": (sizes_for(size),)})
    xs = gradients(layout, size)
    wire = fabric(topology, nodes)
    codecs = [[make_codec(codec, **options) for _ in xs] for _ in range(2)]

    async def synchronized(comm: ScheduledCollectives) -> Tensor:
        this_round = Round(0, layout, comm.rank, comm.size, 3)
        return await codecs[0][comm.rank].synchronize(xs[comm.rank], this_round, comm)

    async def scatter(comm: ScheduledCollectives) -> tuple[Tensor, Tensor, Shard]:
        own, sealing = codecs[1][comm.rank], Sealing(comm)
        this_round = Round(0, layout, comm.rank, comm.size, 3)
        got = await own.scatter(xs[comm.rank], this_round, sealing)  # type: ignore[arg-type]
        shard = own.shards(layout, comm.kept)[comm.rank]
        if not sealing.sealed.numel():  # of a codec whose shards are encoded no more
            sealing.sealed = torch.full((layout.numel,), torch.nan)
            shard.put(got, sealing.sealed)
        return got, sealing.sealed, shard

    world = VirtualWorld(size, wire, CPU, debug=True)
    mean = world.run(dict.fromkeys(range(size), synchronized))[0]
    found = world.run(dict.fromkeys(range(size), scatter))
    check_partition([shard for _, _, shard in found.values()], layout.numel)
    for got, sealed, shard in found.values():
        assert got.shape == (shard.numel,) and got.dtype == torch.float32
        expected = shard.take(mean)
        if codec in ("randomk", "omnireduce", "lattice"):
            named = {"omnireduce": "bf16", "lattice": "lattice"}
            wire_dtype = named.get(codec, options.get("values", "fp32"))
            tolerance = OTHER_CHUNKS[wire_dtype] * float(mean.norm())
            assert float((shard.take(sealed) - expected).norm()) <= tolerance, (topology, size)
        else:
            assert torch.equal(shard.take(sealed), expected), (topology, size)


def check_partition(shards: Sequence[Shard], numel: int) -> None:
    """Every coordinate is in one shard, once."""
    places = torch.cat([shard.take(torch.arange(numel)) for shard in shards])
    assert torch.equal(places.sort().values, torch.arange(numel))


@every_codec
def test_shards_are_no_worse_than_the_mean(codec: str, options: dict[str, Any]) -> None:
    """One encoding less, and only the first half of the bytes."""
    xs = gradients(MODEL, 4)
    for topology, nodes in (("ring", 1), ("butterfly", 1), ("two_level", 2)):
        mean, sent = scattered(codec, options, topology, 4, nodes, MODEL, xs)
        assert vnmse(mean, xs) < make_codec(codec, **options).traits.worst_vnmse
        assert all(set(phases) <= {"metadata", "reduce_scatter"} for phases in sent)


@pytest.mark.parametrize("codec", ["bf16", "qsgd", "dynamiq", "tfp"])
def test_two_ranks_encode_each_coordinate_once(codec: str) -> None:
    """The mean of two has two encodings, the shards have one: about half the error, less for a large sum."""
    xs = gradients(MODEL, 2)
    options: dict[str, Any] = {"bits": 4} if codec == "tfp" else {}
    errors = {
        kind: sum(
            vnmse(scattered(codec, options, "ring", 2, 1, MODEL, xs, seed=seed, whole=kind)[0], xs)
            for seed in range(5)
        )
        for kind in (False, True)
    }
    assert errors[False] < 0.6 * errors[True]


@pytest.mark.parametrize("segments", [2, 3])
@pytest.mark.parametrize("codec", ["fp32", "dynamiq", "mxfp6", "thc", "randomk", "omnireduce", "lattice"])
def test_with_segments_a_shard_has_several_chunks(codec: str, segments: int) -> None:
    layout = layout_of({"a": (5000,)})
    xs = gradients(layout, 4)
    for topology, nodes in (("ring", 1), ("butterfly", 1), ("two_level", 2)):
        mean, _ = scattered(codec, {}, topology, 4, nodes, layout, xs, segments=segments)
        assert vnmse(mean, xs) < (1.5 if codec == "randomk" else 0.7)
        if codec == "fp32":
            torch.testing.assert_close(mean.double(), mean_of(xs), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_codec
def test_shards_are_float32_whatever_the_gradients_are(
    codec: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layout = replace(MODEL, dtype=dtype)
    xs = gradients(layout, 3)
    mean, _ = scattered(codec, options, "ring", 3, 1, layout, xs)
    assert mean.dtype == torch.float32
    assert vnmse(mean, xs) < make_codec(codec, **options).traits.worst_vnmse


@pytest.mark.parametrize(("topology", "nodes"), [("ring", 1), ("butterfly", 1), ("two_level", 2)])
@pytest.mark.parametrize(
    "codec",
    ["fp32", "bf16", "dynamiq", "mxfp4", "thc", "qsgd", "omnireduce", "randomk", "all_to_all", "lattice"],
)
def test_real_workers_get_the_shards_of_virtual_ones(
    codec: str, topology: str, nodes: int, workers: Workers
) -> None:
    virtual, sent = scattered(codec, {}, topology, 4, nodes, MODEL, gradients(MODEL, 4))
    real = workers(4)(scatter_for_real, topology, nodes, codec)
    together = torch.empty_like(virtual)
    for rank, (shard, places, traffic) in enumerate(real):
        places.put(shard, together)
        assert traffic == sent[rank]
    assert torch.equal(together, virtual)


@every_codec
def test_nothing_is_lost_of_a_scatter_with_error_feedback(codec: str, options: dict[str, Any]) -> None:
    """n·Σ means + residuals = Σ gradients, of shards as of whole means."""
    plain = make_codec(codec, **options)
    if not isinstance(plain, ReportsLosses) or make_codec(codec, ef=True, **options).supports(
        "ring", 3, MODEL
    ):
        pytest.skip("without error feedback")
    codecs = [make_codec(codec, ef=True, **options) for _ in range(3)]
    given, received = torch.zeros(2, MODEL.numel, dtype=torch.float64)
    for step in range(3):
        xs = gradients(MODEL, 3, step)
        given += 3 * mean_of(xs)
        received += 3 * scattered(codecs, {}, "ring", 3, 1, MODEL, xs, step=step)[0].double()
    kept = torch.zeros_like(given)
    for own in codecs:
        state = own.state_dict()
        kept += torch.cat([state[f"residual/{name}"].double() for name in MODEL.names])
    assert float((received + kept - given).square().sum() / given.square().sum()) < 1e-9


@pytest.mark.parametrize("codec", ["dynamiq", "mxfp8", "qsgd", "thc", "omnireduce", "all_to_all", "lattice"])
@pytest.mark.parametrize("exclude", [["*bias", "norm"], ["head*"], ["*"]])
def test_excluded_parameters_have_shards_of_their_own(codec: str, exclude: list[str]) -> None:
    xs = gradients(MODEL, 3)
    own, kept = make_codec(codec, exclude=exclude), make_schedule("ring", 3).kept
    check_partition(own.shards(MODEL, kept), MODEL.numel)
    mean, _ = scattered(codec, {"exclude": exclude}, "ring", 3, 1, MODEL, xs)
    assert vnmse(mean, xs) < 0.7


def test_a_broadcast_keeps_nothing() -> None:
    with pytest.raises(ValueError, match="topology=broadcast computes no partial sums"):
        _ = make_schedule("broadcast", 3).kept


def test_one_rank_keeps_everything() -> None:
    for topology in ("ring", "butterfly", "two_level"):
        assert make_schedule(topology, 1).kept == ((0,),)


def test_runs_are_cut_where_they_are_told() -> None:
    generator = torch.Generator().manual_seed(4)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    for _ in range(500):
        length, count, start = drawn(1, 5), drawn(1, 5), drawn(0, 7)
        run = Stretches(start, length, drawn(length, 9), count)
        places = Shard((run,)).take(torch.arange(80)).tolist()
        low = drawn(0, 60)
        high = drawn(low, 60)
        cut = Shard(tuple(run.within(low, high)))
        assert cut.take(torch.arange(80)).tolist() == [place for place in places if low <= place < high]
