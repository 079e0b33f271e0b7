"""The lattice codec: whole rounds by every implementation of its kernels give the definition's bits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from codec_rounds import Cluster, as_bytes, gradients, layout_of
from implementations import IMPLEMENTATIONS, implementation
from torch import Tensor

from gradwire.codecs.lattice import codec as lattice_codec
from gradwire.codecs.lattice import feedback
from gradwire.codecs.lattice.feedback import BucketDecision
from gradwire.codecs.native.call import run
from gradwire.codecs.native.choice import library_for, using_kernels

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
every_code = pytest.mark.parametrize("code", ["rice", "packed"])


def awkward(kind: str, numel: int, seed: int) -> Tensor:
    """Gradients that are large, small, zero or not finite in places."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    rows = torch.arange(numel) // 256
    if kind == "mixed":
        x *= 2.0 ** ((37 * rows + seed) % 200 - 100)
    elif kind == "largest":
        x = x.sign() * torch.finfo(torch.float32).max * (rows % 3 > 0)
    elif kind == "subnormal":
        x *= 2.0**-140
    elif kind == "zeros":
        x *= rows % 2 * (rows % 5 != seed % 5)
    elif kind == "outliers":
        x[:: 97 + seed % 7] *= 1e4
    elif kind == "broken":
        x[numel // 2] = torch.nan
        x[numel // 3] = -torch.inf
    return x


KINDS = ("mixed", "largest", "subnormal", "zeros", "outliers", "broken")


def rounds(
    topology: str, size: int, kind: str, options: tuple[tuple[str, Any], ...], steps: int = 2
) -> list[Tensor]:
    """The means of a few steps; every rank's gradients are of this kind."""
    layout = layout_of({"a": (17 * size, 256), "b": (100,)})
    cluster = Cluster(size, topology, "lattice", **dict(options))
    found = []
    for step in range(steps):
        xs = gradients(layout, size, step)
        if kind != "usual":
            xs = [awkward(kind, layout.numel, 10 * step + rank) for rank in range(size)]
        found += cluster.step((layout, xs))
    return found


@lru_cache(maxsize=32)
def defined(*given: Any) -> list[Tensor]:
    with using_kernels("default"):
        return rounds(*given)


def check(name: str, *given: Any, by: Any = defined) -> None:
    expected = by(*given)
    with implementation(name):
        actual = rounds(*given)
    for own, wanted in zip(actual, expected, strict=True):
        assert torch.equal(as_bytes(own), as_bytes(wanted))


@every_implementation
@every_code
@pytest.mark.parametrize(
    ("topology", "size"), [("ring", 2), ("ring", 5), ("butterfly", 4), ("butterfly", 5), ("broadcast", 3)]
)
def test_every_topology(name: str, code: str, topology: str, size: int) -> None:
    check(name, topology, size, "usual", (("bits", 4.0), ("code", code), ("slot", 16)), 3)


@every_implementation
@every_code
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(name: str, code: str, kind: str) -> None:
    check(name, "butterfly", 3, kind, (("bits", 5.0), ("code", code)))


@every_implementation
@every_code
@pytest.mark.parametrize("share", [0.7, 0.3])
@pytest.mark.parametrize(("topology", "size"), [("ring", 4), ("butterfly", 5)])
def test_slots_that_are_too_small(
    monkeypatch: pytest.MonkeyPatch, name: str, code: str, share: float, topology: str, size: int
) -> None:
    """Sums lose bits until they fit."""

    def smaller(*given: Any) -> BucketDecision:
        found = feedback.of_bucket(*given)
        sizes = [max(32 * int(share * size / 32), 8 * 32) for size in found.sizes]
        return BucketDecision(sizes, found.gains, found.known)

    monkeypatch.setattr(lattice_codec, "of_bucket", smaller)
    options = (("bits", 4.0), ("code", code), ("slot", 16 if share > 0.5 else 64))
    check(name, topology, size, "usual", options, by=defined.__wrapped__)


@every_implementation
@every_code
def test_messages_of_chance(name: str, code: str) -> None:
    """Whatever a message holds, nothing beyond it is read, and nothing beyond the sums is written."""
    super_groups, slots, size = 5, 3, 32 * 41
    places = super_groups * slots
    with implementation(name):
        found = library_for(torch.device("cpu"))
        assert found is not None
        for seed in range(40):
            draw = torch.Generator().manual_seed(seed)
            message = torch.randint(256, (slots * size // 8,), generator=draw, dtype=torch.uint8)
            sums = torch.full((places * 256 + 8,), 77, dtype=torch.int32)
            shifts, marks = torch.zeros(2, places, dtype=torch.uint8).unbind()
            run(
                found,
                "lattice_hop",
                message.device,
                order=(torch.arange(places), places),
                step=(torch.zeros(1, dtype=torch.int64), 1),
                message_in=(message, message.numel()),
                size_in=size,
                sums=(sums[:-8], places * 256),
                shifts=(shifts, places),
                marks=(marks, places),
                numel=places * 256,
                slots=slots,
                super_groups=super_groups,
                packed=int(code == "packed"),
                workers=2,
                count=1,
            )
            assert sums[-8:].eq(77).all()
