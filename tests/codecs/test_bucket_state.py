"""State that belongs to a bucket: kept under the bucket's key, taken back by skipped steps, and restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from codec_rounds import MODEL, TAIL, Cluster, gradients, mean_of
from torch import Tensor

from gradwire.codecs.casts import Cast
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.slices import SliceCodec
from gradwire.codecs.step_memory import StepMemory
from gradwire.codecs.traits import About, Traits


@dataclass
class Momentum(SliceCodec):
    """The mean plus half of the bucket's mean norm so far, one number for each bucket."""

    name: str = "bucket_momentum"
    about = About(source="a test", wire_bits="32", state="a number of every bucket")
    traits = Traits(stateful=True, keeps_zeros=False, follows_magnitude=False)

    def __post_init__(self) -> None:
        self._kept = StepMemory[Tensor]()

    def coder(self, this_round: Round) -> Cast:
        return Cast(torch.float32)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        mean = await super().synchronize(x, this_round, comm)
        key = this_round.layout.key
        before = self._kept.get(key, torch.zeros(()))
        self._kept[key] = before / 2 + mean.norm()
        return mean + before / 2

    def end_step(self, step: int) -> Mapping[str, float]:
        self._kept.end_step()
        return {}

    def skip_step(self, step: int) -> Mapping[str, float]:
        self._kept.skip_step()
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._kept.load(state)


def cluster_of(size: int) -> Cluster:
    cluster = Cluster(size, "ring", "fp32")
    cluster.codecs = [Momentum() for _ in range(size)]
    return cluster


def test_each_bucket_has_a_state_of_its_own_and_goes_on_bit_for_bit() -> None:
    whole = cluster_of(3)
    expected = whole.train(4)
    assert set(whole.codecs[0].state_dict()) == {MODEL.key, TAIL.key}
    first, second = (cluster_of(3) for _ in range(2))
    first.train(2)
    for old, new in zip(first.codecs, second.codecs, strict=True):
        new.load_state_dict({key: value.clone() for key, value in old.state_dict().items()})
    second.steps = first.steps
    for got, wanted in zip(second.train(2), expected[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_skipped_step_leaves_a_buckets_state() -> None:
    cluster = cluster_of(2)
    cluster.train(1)
    before = {key: value.clone() for key, value in cluster.codecs[0].state_dict().items()}
    cluster.one(gradients(MODEL, 2, 7), MODEL, skip=True)
    assert cluster.codecs[0].state_dict() == before
    cluster.one(gradients(MODEL, 2, 7), MODEL)
    assert cluster.codecs[0].state_dict() != before


def test_another_bucket_begins_anew() -> None:
    """The names of its parameters are the key: not its place among a step's buckets, nor its dtype."""
    cluster = cluster_of(2)
    cluster.train(1)
    other = Layout(("other",), ((5,),), (0,), 5)
    xs = gradients(other, 2)
    torch.testing.assert_close(cluster.one(xs, other).double(), mean_of(xs), rtol=1e-5, atol=1e-9)
    assert len({MODEL.key, TAIL.key, other.key}) == 3
    assert replace(MODEL, dtype=torch.bfloat16).key == MODEL.key
