"""Models and settings that the lattice codec refuses, before anything starts and in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codec_rounds import MODEL, TAIL, layout_of
from training_jobs import tiny_run, train_all_virtually

from gradwire.codecs.lattice.sizes import least_numel, too_small
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.registry import make_codec
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.runtime.errors import ConfigError


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
@pytest.mark.parametrize("bits", [2.0, 5.0, 16.0])
def test_the_size_that_a_bucket_needs_is_the_least_one(workers: int, bits: float) -> None:
    least = least_numel(workers, 64, workers, bits)
    assert not too_small(Slots(least, workers, 64), workers, bits)
    assert too_small(Slots(least - 256, workers, 64), workers, bits)
    assert all(not too_small(Slots(least + 256 * more, workers, 64), workers, bits) for more in range(300))
    assert least < 256 * (4 * workers + 8)


def test_one_bucket_with_slots_is_enough() -> None:
    codec = make_codec("lattice")
    assert codec.refuses_buckets([TAIL, MODEL, TAIL], 2, 2) is None
    assert codec.refuses_buckets([TAIL], 1, 1) is None, "one worker sends nothing"
    said = codec.refuses_buckets([TAIL, layout_of({"a": (600,)})], 4, 4)
    assert said == (
        "codec=lattice: the largest bucket has 600 coordinates, and with codec.bits=5 and 4 workers it takes "
        "3328 to compress one: use larger buckets, or codec=bf16, which is how these would travel"
    )


def test_excluded_parameters_do_not_count() -> None:
    """They travel in bfloat16 anyway; without any others there is nothing to refuse."""
    codec = make_codec("lattice", exclude=["body.*", "head.*"])
    assert "the largest bucket has 300 coordinates" in (codec.refuses_buckets([MODEL], 2, 2) or "")
    assert make_codec("lattice", exclude=["*"]).refuses_buckets([MODEL], 2, 2) is None


def test_others_take_buckets_of_any_size() -> None:
    assert make_codec("dynamiq").refuses_buckets([TAIL], 4, 4) is None


def test_a_model_without_slots_cannot_be_trained(tmp_path: Path) -> None:
    """Its largest bucket is that of the embeddings, which are left out here."""
    settings = ("codec=lattice", "codec.exclude=[*wte*]", "cluster=virtual")
    with pytest.raises(ValueError, match=r"^codec=lattice: the largest bucket has \d+ coordinates, and with"):
        train_all_virtually(tiny_run(*settings, "cluster.workers=12"), str(tmp_path / "twelve"))
    train_all_virtually(tiny_run(*settings, "cluster.workers=2"), str(tmp_path / "two"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("task=replay", "gradients={file}"),
            "the largest bucket has 2000 coordinates, and with codec.bits=5",
        ),
        (
            ("task=allreduce", "allreduce.coordinates=2000", "cluster=virtual", "network=simulated"),
            "and 4 workers it takes 3328 to compress one",
        ),
        (
            ("codec.bits=1.5", "task=replay", "gradients={file}"),
            "codec.bits=1.5: choose a number from 2 to 16",
        ),
    ],
)
def test_tasks_refuse_in_one_line(overrides: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    np.savez(file, gradients=np.random.default_rng(0).normal(size=(4, 2000)).astype(np.float32))
    given: list[Any] = ["codec=lattice", "cluster.workers=4", *(each.format(file=file) for each in overrides)]
    with pytest.raises(ConfigError) as refused:
        validate_any(compose(given))
    assert said in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 300
