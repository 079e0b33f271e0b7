"""Bad input is refused in one line: field, value, what is allowed, the fix."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from gradwire.codecs.fields import rules_of
from gradwire.harness.config.compose import compose
from gradwire.harness.config.effects import READ_WITH
from gradwire.harness.config.rules import GIVEN, SHAPED, TOGETHER, Refusal, check
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.config.validate import validate
from gradwire.harness.data.settings import READ_WITH as OF_DATASET
from gradwire.harness.runtime.errors import ConfigError

REFUSED_COMPOSING = [
    ("seed=-1", ["seed=-1", "from 0 to 2147483647"]),
    ("seed=abc", ["seed=abc", "whole number"]),
    ("codec=dynamic", ["codec=dynamic", "bf16, dynamiq, dynamiq_plus, edgc, fp32", "mxfp4", "codec=dynamiq"]),
    ("size=huge", ["size=huge", "gpu, paper, small, tiny"]),
    ("experiment=nope", ["experiment=nope", "smoke"]),
    ("~codec", ["~codec", "cannot be removed"]),
    ("codec=null", ["codec=null", "choose one of all_to_all, aqgb, backend"]),
    ("train.stepz=3", ["train.stepz=3", "train.steps"]),
    ("workers=4", ["workers=4", "cluster.workers"]),
    ("foo=1", ["foo=1", "top-level keys are", "codec"]),
    ("+foo=1", ["+foo=1", "leave out the +"]),
    ("++model.recipe.foo=1", ["unknown key model.recipe.foo", "did you mean model.recipe"]),
    ("network.rate_mbit=3", ["network.rate_mbit=3", "network=paced, shaped"]),
    ("network.nodes=3", ["network.nodes=3", "network=simulated has it: choose that"]),
    ("network=shaped network.latency_s=1", ["network.latency_s=1", "network=paced"]),
    ("codec=bf16 codec.bits=4", ["codec.bits=4", "codec=dynamiq, dynamiq_plus"]),
    ("train.steps=abc", ["train.steps=abc", "whole number"]),
    ("train.lr=fast", ["train.lr=fast", "choose a number above 0"]),
    ("overlap.enabled=maybe", ["overlap.enabled=maybe", "true or false"]),
    ("train.micro_batch=null", ["train.micro_batch=null", "choose a whole number"]),
    ("measure.targets=3", ["measure.targets=3", "choose a list"]),
    ("codec=bf16,fp32", ["codec=bf16,fp32", "--multirun"]),
    ("train.lr=(", ["train.lr=(", "the bracket ) is missing"]),
    ("train.lr=a:b,c|", ["train.lr=a:b,c|", "quotes"]),
]

REFUSED_VALIDATING = [
    ("cluster.workers=0", ["cluster.workers=0", "from 1 to 1024, or null"]),
    ("cluster.backend=mpi", ["cluster.backend=mpi", "auto, gloo, nccl"]),
    ("cluster.timeout_s=0", ["cluster.timeout_s=0", "from 0.1 to"]),
    ("cluster.hang_s=0.5", ["cluster.hang_s=0.5", "from 1 to"]),
    ("cluster.restarts=-1", ["cluster.restarts=-1", "from 0 to 1000"]),
    ("task=overhead cluster.restarts=2", ["cluster.restarts=2", "task=overhead"]),
    ("train.steps=0", ["train.steps=0", "from 1 to"]),
    ("train.lr=0", ["train.lr=0", "above 0"]),
    ("train.lr=nan", ["train.lr=nan", "above 0"]),
    ("train.beta2=1.5", ["train.beta2=1.5", "from 0 to 0.999999"]),
    ("train.precision=fp8", ["train.precision=fp8", "auto, fp32, bf16"]),
    ("train.steps=null", ["train.steps=null", "set train.steps="]),
    ("train.epochs=1", ["train.epochs=1", "train.steps=null"]),
    ("train.optimizer=lion", ["train.optimizer=lion", "adamw, adam, sgd"]),
    ("train.momentum=0.5", ["train.momentum=0.5", "train.optimizer=sgd"]),
    ("train.optimizer=sgd train.beta1=0.5", ["train.beta1=0.5", "train.momentum"]),
    ("train.optimizer=sgd train.beta2=0.5", ["train.beta2=0.5", "train.momentum"]),
    ("train.optimizer=sgd parallel=sharded", ["train.optimizer=sgd", "parallel=ddp"]),
    ("train.schedule=steps", ["train.schedule=steps", "set train.decay_epochs="]),
    (
        "train.schedule=steps train.decay_steps=3 train.end_factor=0.5",
        ["train.end_factor=0.5", "leave it out, and set train.decay_epochs"],
    ),
    ("train.decay_factor=0.5", ["train.decay_factor=0.5", "train.schedule=steps"]),
    (
        "train.schedule=steps train.decay_steps=5 train.decay_epochs=1",
        ["train.decay_epochs=1", "train.decay_steps=null"],
    ),
    ("overlap.buckets=0", ["overlap.buckets=0", "from 1 to 64"]),
    ("overlap.segments=0", ["overlap.segments=0", "from 1 to 1024"]),
    ("overlap.segments=2 codec=backend", ["overlap.segments=2", "codec=backend", "codec=fp32"]),
    ("cluster.gradients=tape", ["cluster.gradients=tape", "auto, memory, disk"]),
    ("cluster.gradients=disk", ["cluster.gradients=disk", "cluster=local", "cluster=virtual"]),
    ("measure.vnmse_every=-1", ["measure.vnmse_every=-1", "from 0 to"]),
    ("codec.bits=0.1", ["codec.bits=0.1"]),
    ("codec.rounding=up", ["codec.rounding=up", "correlated", "independent"]),
    ("network=paced network.rate_mbit=0", ["network.rate_mbit=0", "from 0.001 to"]),
    ("network=paced codec=backend", ["codec=backend", "network=none"]),
    ("cluster=virtual codec=backend", ["codec=backend", "cluster=local"]),
    ("model.family=gpt9", ["model.family=gpt9", "bert, gemma, gpt2, llama, resnet, resnext"]),
    ("model.num_heads=3", ["model.num_heads=3", "model.hidden_size=128"]),
    ("model.context=8", ["sequence_length", "model.context=8"]),
    ("model.name=${nowhere}", ["model.name", "nowhere"]),
    ("kernels.name=fast", ["kernels.name=fast", "auto, default"]),
    ("topology.name=star", ["topology=star", "broadcast, butterfly, ring, two_level"]),
    ("task.name=dance", ["task.name=dance", "train"]),
    ("dataset=text", ["dataset.path"]),
    ("dataset.path=/no/such/place", ["dataset.path=/no/such/place", "no such file"]),
    ("size.name=small", ["dataset=auto", "dataset.path=", "size=tiny"]),
]


WithValues = Callable[..., DictConfig]


PLANNED = ["floor=0.25", "margin_s=0.1", "gain=0.5", "rate_gain=0.5", "step_bits=4", "leftovers=requantized"]


@pytest.mark.parametrize("name", PLANNED)
def test_fixed_bits_of_aqgb_leave_no_plan_to_set(name: str, with_values: WithValues) -> None:
    given, usual = f"codec.{name}", ("codec=aqgb", "parallel=blocks", "topology=broadcast")
    validate(with_values(*usual, given))
    validate(with_values(*usual, "codec.bits=4"))
    config = with_values(*usual, given, "codec.bits=4")
    with pytest.raises(ConfigError) as refused:
        validate(config)
    said = [f"{given}: choose one of ", "codec.bits=4 replaces AQGB's plan", "leave one of them out"]
    assert_refused(refused.value, said)


def assert_refused(error: ConfigError, parts: list[str]) -> None:
    assert "\n" not in str(error)
    for part in parts:
        assert part in str(error)


@pytest.mark.parametrize(("given", "parts"), REFUSED_COMPOSING)
def test_refused_while_composing(given: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["size=tiny", *given.split(" ")] if not given.startswith("size") else [given])
    assert_refused(refused.value, parts)


@pytest.mark.parametrize(("given", "parts"), REFUSED_VALIDATING)
def test_refused_while_validating(given: str, parts: list[str], with_values: WithValues) -> None:
    config = with_values(*given.split(" "))
    with pytest.raises(ConfigError) as refused:
        validate(config)
    assert_refused(refused.value, parts)


def test_restarts_are_the_launchers(with_values: WithValues, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual cluster in torchrun's one process starts its own."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ConfigError) as refused:
        validate(with_values("cluster.restarts=3"))
    assert_refused(refused.value, ["cluster.restarts=3", "use torchrun --max-restarts 3"])
    assert validate(with_values("cluster.restarts=3", "cluster=virtual")).cluster.restarts == 3


def test_every_rule_names_settings_that_there_are(with_values: WithValues) -> None:
    """A misspelled setting in a message would otherwise fail when its rule first refuses."""
    run = validate(with_values("codec=bf16"))
    rules: list[Refusal[Any]] = [*GIVEN, *SHAPED, *TOGETHER]
    for rule in rules:
        with pytest.raises(ConfigError) as refused:
            check([replace(rule, when=lambda _: True)], run)
        assert_refused(refused.value, ["; "])
        assert "{" not in str(refused.value)


def test_a_folder_without_text_is_refused(tmp_path: Path, with_values: WithValues) -> None:
    (tmp_path / "picture.png").touch()
    with pytest.raises(ConfigError) as refused:
        validate(with_values(f"dataset.path={tmp_path}"))
    assert_refused(refused.value, ["dataset.path", ".txt"])


def test_missing_weights_name_every_way_out(tmp_path: Path, with_values: WithValues) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(with_values("model.weights=pretrained", f"model.path={tmp_path}/none"))
    assert_refused(refused.value, ["model.path=", "size=tiny", "model.weights=random"])


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["cluster.backend=nccl"], ["cluster.backend=nccl", "cluster.backend=gloo"]),
        (["cluster.device=cuda"], ["cluster.device=cuda", "cluster.device=cpu"]),
    ],
)
def test_gpus_that_are_not_there(
    given: list[str], parts: list[str], with_values: WithValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError) as refused:
        validate(with_values(*given))
    assert_refused(refused.value, parts)


def test_with_gpus_device_and_backend_follow_the_network(
    with_values: WithValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nccl sends from GPUs, gloo from CPU memory; links can be paced on gloo only."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)

    def resolved(*given: str) -> tuple[int, str, str, str]:
        config = validate(with_values(*given))
        cluster = config.cluster
        return cluster.workers, cluster.device, cluster.backend, config.train.precision

    assert resolved("cluster.workers=null") == (2, "cuda", "nccl", "bf16")
    assert resolved("cluster.workers=2", "network=paced") == (2, "cpu", "gloo", "fp32")
    assert resolved("cluster.workers=3") == (3, "cpu", "gloo", "fp32")
    assert resolved("cluster.workers=3", "cluster=virtual")[:2] == (3, "cuda")
    for given, said in {
        ("network=paced", "cluster.backend=nccl"): r"cluster.backend=nccl needs a GPU",
        ("network=paced", "cluster.device=cuda"): r"network=paced.*cluster.device=cpu",
        ("cluster.device=cuda", "cluster.backend=gloo"): r"cluster.device=cuda needs cluster.backend=nccl",
        ("cluster.device=cuda", "cluster.workers=3"): r"cluster.device=cuda needs.*there are 2",
    }.items():
        with pytest.raises(ConfigError, match=said):
            validate(with_values("cluster.workers=2", *given))


def test_the_table_of_readers_names_settings_and_tasks_that_there_are() -> None:
    """A row with a mistyped key would refuse nothing."""
    known = set(TASKS)
    for group, schemas in group_schemas().items():
        known |= {group, *(f"{group}.{name}" for schema in schemas.values() for name in rules_of(schema))}
    for task in TASKS.values():
        for key, schema in typing.get_type_hints(task.config).items():
            if dataclasses.is_dataclass(schema):
                known |= {f"{key}.{name}" for name in rules_of(schema)}
    for row in (*READ_WITH, *OF_DATASET):
        assert {*row.keys, *row.readers, *row.read_by} <= known, row
