"""A model's recipe on its way into the training settings of a run."""

from __future__ import annotations

import copy
from functools import cache

import pytest
from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.runtime.errors import ConfigError


@cache
def _gpt_125m() -> DictConfig:
    return compose(["model=gpt_125m", "dataset=embedded", "cluster=virtual", "cluster.workers=4"])


def _set(**values: object) -> DictConfig:
    """SDP4Bit's smallest model as in the paper, without the hub, and with these settings."""
    config = copy.deepcopy(_gpt_125m())
    for key, value in {"model.tokenizer": None, **values}.items():
        OmegaConf.update(config, key, value)
    return config


def _refusal(config: DictConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        validate(config)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("workers", "micro_batch", "accumulation"), [(4, 1, 64), (64, 1, 4), (8, 16, 2)])
def test_a_batch_of_all_workers_becomes_accumulation(
    workers: int, micro_batch: int, accumulation: int
) -> None:
    train = validate(_set(**{"cluster.workers": workers, "train.micro_batch": micro_batch})).train
    assert (train.batch, train.accumulation) == (256, accumulation)


def test_without_a_batch_a_step_is_one_forward_pass_by_default() -> None:
    assert validate(_set(**{"train.batch": None})).train.accumulation == 1
    assert validate(_set(**{"train.batch": None, "train.accumulation": 3})).train.accumulation == 3


def test_batches_that_cannot_be_shared_are_refused() -> None:
    told = _refusal(_set(**{"cluster.workers": 6}))
    assert "train.batch=256 is not a multiple of cluster.workers=6" in told and "train.batch=null" in told
    told = _refusal(_set(**{"train.accumulation": 3}))
    assert "train.accumulation=3 contradicts train.batch=256" in told and "train.batch=null" in told


def test_a_recipe_by_steps_yields_to_epochs_only_if_set() -> None:
    assert validate(_set()).train.steps == 80_000
    assert "train.steps=null" in _refusal(_set(**{"train.epochs": 1}))
    assert validate(_set(**{"train.epochs": 1, "train.steps": None})).train.epochs == 1


def test_a_recipe_by_epochs_gives_way_to_steps() -> None:
    config = compose(["model=gpt2", "dataset=embedded", "model.tokenizer=null", "train.steps=7"])
    assert validate(config).train.steps == 7


def test_a_missing_tokenizer_is_refused_with_the_ways_out() -> None:
    told = _refusal(_set(**{"model.tokenizer": "./no/such/folder"}))
    assert "model.tokenizer=./no/such/folder" in told and "model.tokenizer=null" in told
