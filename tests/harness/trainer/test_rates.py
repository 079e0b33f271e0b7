"""Learning rates that suit the batch, and the longest warm-up."""

from __future__ import annotations

import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.trainer.rates import check_warm_up, rate_for_batch

GPU = ("size=gpu", "dataset=embedded", "cluster=virtual")


def rate(*overrides: str) -> float | None:
    return validate(compose([*GPU, *overrides])).train.lr


def test_the_rate_grows_with_the_square_root_of_the_batch_up_to_the_recipes() -> None:
    assert rate_for_batch(6e-4, 8, 128) == pytest.approx(1.5e-4)
    assert rate_for_batch(6e-4, 128, 128) == 6e-4
    assert rate_for_batch(6e-4, 4096, 128) == 6e-4
    assert rate_for_batch(6e-4, 1, None) == 6e-4


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        (("cluster.workers=1",), 4),
        (("cluster.workers=16",), 64),
        (("cluster.workers=2", "train.accumulation=3"), 24),
        (("cluster.workers=2", "train.micro_batch=1"), 2),
        (("cluster.workers=2", "train.batch=32"), 32),
        (("cluster.workers=4", "parallel=pipeline", "parallel.stages=2"), 2 * 4 * 8),
    ],
)
def test_size_gpu_has_a_rate_for_every_batch(given: tuple[str, ...], batch: int) -> None:
    assert rate(*given) == pytest.approx(6e-4 * (batch / 128) ** 0.5)


def test_a_rate_that_is_given_stays() -> None:
    assert rate("cluster.workers=1", "train.lr=6e-4") == 6e-4
    assert rate("cluster.workers=1", "size.lr_batch=null") == 6e-4
    assert rate("cluster.workers=1", "model.recipe.lr=1e-3", "size.lr_batch=4") == 1e-3


def test_other_sizes_have_the_recipes_rate() -> None:
    for size in ("tiny", "small"):
        config = validate(compose([f"size={size}", "dataset=embedded", "cluster.workers=1"]))
        assert config.train.lr == config.model.recipe.lr


def test_a_warm_up_may_be_as_long_as_the_run_and_no_longer() -> None:
    check_warm_up(20, 20)
    with pytest.raises(ValueError, match=r"train\.warmup_steps=21 is more than train\.steps=20"):
        check_warm_up(21, 20)


@pytest.mark.parametrize("given", ["size=tiny train.warmup_steps=30", "size=small", "size=gpu"])
def test_warm_ups_of_presets_and_users_are_refused_alike(given: str) -> None:
    own = [*given.split(), "dataset=embedded", "cluster=virtual", "cluster.workers=1", "train.steps=19"]
    with pytest.raises(ConfigError, match="choose at most train.warmup_steps=19, or more steps"):
        validate(compose(own))
    validate(compose([*own, "train.warmup_steps=19"]))
