"""Every model at every size composes, is built and takes one step.

`paper` and `gpu` run on the meta device, so that no memory is needed, and with at most six layers (one
round of Gemma's local and global ones): all layers of a kind have the same shapes. `small` and `tiny`
train for real. Sizes make many models equal: each shape is stepped once.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
import transformers
from omegaconf import DictConfig, OmegaConf
from presets import PRESETS, preset

from gradwire.harness.config.compose import compose
from gradwire.harness.models.build import ATTENTION, build_model, transformers_config
from gradwire.harness.models.families import HEADS
from gradwire.harness.models.settings import ModelConfig, RecipeConfig, check
from gradwire.harness.models.vision import VISION, missing_package
from gradwire.harness.packaged.catalogue import CATALOGUE
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.trainer.schedule import TrainingSchedule
from gradwire.harness.trainer.settings import TrainConfig

SIZED = tuple(name for name in PRESETS if name not in {weights.model for weights in CATALOGUE.values()})
"""The models that sizes shrink; the others keep their weights: tests/harness/packaged."""

SIZES = ("paper", "gpu", "small", "tiny")
MOST_LAYERS = 6

DIGESTS = {
    "bert_345m": "5201a2c8fc6103bf",
    "bert_large": "b70f5b0558f637ba",
    "gemma1b": "f4668c625519e5e8",
    "gpt2": "33846dfb3db69f76",
    "gpt2_medium": "8886f657cd8330a5",
    "gpt_125m": "2a23b9069d91929e",
    "gpt_12_1b": "3ab826af5ee6e9df",
    "gpt_13b": "c95fde88b6e03d60",
    "gpt_18b": "a16aa45b9aa36da2",
    "gpt_1_3b": "a4ad106f4d05dced",
    "gpt_2_5b": "af482f076dd94f4f",
    "gpt_2_7b": "1be6f6ea48a39b9c",
    "gpt_345m": "d259b749c9de0a39",
    "gpt_350m": "20281dd27a1bea47",
    "gpt_6_7b": "aa3b3dd5791b911c",
    "llama1b": "2f02e499df5ca059",
    "llama1b_mmlu": "d4a39a4a2927075d",
    "resnet50": "c1be1daf7d64167c",
    "resnet_small": "c18dcb0297d601a0",
    "resnext101": "beedafc9f8c9d1e3",
    "tinybert": "cb3a512c5c7d7c22",
    "tinybert_glue": "1567c94100d5acfd",
}
"""Digests of the values of every model at all sizes, its recipe included."""


@cache
def unresolved(model: str) -> DictConfig:
    config = compose([f"model={model}"])
    OmegaConf.set_struct(config, False)
    return config


@cache
def composed(model: str, size: str) -> tuple[ModelConfig, dict]:
    """The model and the training settings of `model=<model> size=<size>`.

    Hydra composes each model once; a size is merged over it as Hydra does, at a tenth of the time.
    """
    preset = OmegaConf.load(conf_directory() / "size" / f"{size}.yaml")
    del preset["defaults"]
    return settings_of(OmegaConf.merge(unresolved(model), preset))


def settings_of(config: DictConfig) -> tuple[ModelConfig, dict]:
    config = copy.deepcopy(config)
    OmegaConf.resolve(config)
    return OmegaConf.to_object(config.model), OmegaConf.to_container(config.train)


def shape_of(config: ModelConfig) -> ModelConfig:
    """The model without what its shape does not depend on."""
    unshaped = {
        "name": "shape",
        "weights": "random",
        "tokenizer": None,
        "paper_dataset": "any",
        "pretrained": "any",
    }
    return replace(config, **unshaped, recipe=RecipeConfig(sequence_length=config.recipe.sequence_length))


def once(check_shape: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], int]:
    """`check_shape`, run once for all models of one shape."""
    done: dict[str, int] = {}

    def checked(config: ModelConfig) -> int:
        shape = shape_of(config)
        if repr(shape) not in done:
            done[repr(shape)] = check_shape(shape)
        return done[repr(shape)]

    return checked


@once
def parameters_after_a_step(shape: ModelConfig) -> int:
    """The model's parameters, after a real step that lowered the loss on its batch."""
    model = build_model(shape, seed=0).eval()  # no dropout: two losses of one batch can be compared
    if shape.family in VISION:
        images = torch.rand((4, 3, 32, 32), generator=torch.Generator().manual_seed(0))
        return parameters_after(model.train(), {"pixel_values": images, "labels": torch.tensor([0, 1, 0, 1])})
    tokens = torch.arange(2 * 16).reshape(2, 16) % (shape.vocab_size - 3) + 3
    labels = torch.tensor([0, 1]) if shape.objective == "classification" else tokens
    return parameters_after(model, {"input_ids": tokens, "labels": labels})


def parameters_after(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> int:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = model(**batch).loss
    before.backward()
    optimizer.step()
    assert model(**batch).loss < before
    return sum(parameter.numel() for parameter in model.parameters())


@once
def parameters_after_a_meta_step(shape: ModelConfig) -> int:
    """The model's parameters, after a forward with its loss and a backward to all of them.

    Without memory and values, of at most `MOST_LAYERS` layers.
    """
    if shape.family in VISION:
        return parameters_of_images(shape)
    auto = getattr(transformers, HEADS[shape.objective])
    shallow = replace(shape, num_layers=min(shape.num_layers, MOST_LAYERS))
    length = shape.recipe.sequence_length
    with torch.device("meta"):
        model = auto.from_config(
            transformers_config(shallow, shape.vocab_size), attn_implementation=ATTENTION
        ).train()
        tokens = torch.zeros(1, length, dtype=torch.long)
        mask = torch.ones(1, 1, length, length, dtype=torch.bool)  # making one reads values
    labels_one = shape.objective == "classification"
    labels = torch.zeros(1, dtype=torch.long, device="meta") if labels_one else tokens
    output = model(input_ids=tokens, labels=labels, attention_mask=mask)
    logits = (1, 2) if labels_one else (1, length, shape.vocab_size)
    assert output.logits.shape == logits and output.loss.shape == ()
    output.loss.backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


def parameters_of_images(shape: ModelConfig) -> int:
    with torch.device("meta"):
        model = build_model(shape, seed=0, labels=("a", "b", "c"))
        output = model(pixel_values=torch.zeros(2, 3, 64, 64), labels=torch.zeros(2, dtype=torch.long))
    assert output.logits.shape == (2, 3) and output.loss.shape == ()
    output.loss.backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(autouse=True)
def with_its_package(request: pytest.FixtureRequest) -> None:
    """Skips a model whose extra package is not installed, except where only its settings are looked at."""
    model = request.node.callspec.params.get("model") if hasattr(request.node, "callspec") else None
    if model in PRESETS and "learning_rate" not in request.node.name:
        reason = missing_package(preset(model).family)
        if reason is not None:
            pytest.skip(reason)


def test_every_model_has_the_name_of_its_file() -> None:
    assert (len(PRESETS), len(SIZED)) == (24, 22) and all(preset(name).name == name for name in PRESETS)


@pytest.mark.parametrize("model", SIZED)
def test_the_values_of_every_model_stay(model: str) -> None:
    values = repr([composed(model, size)[0] for size in SIZES])
    assert hashlib.sha256(values.encode()).hexdigest()[:16] == DIGESTS[model]


@pytest.mark.parametrize(("model", "size"), zip(("gpt_125m", "gemma1b", "tinybert"), SIZES[1:], strict=True))
def test_merging_a_size_is_what_hydra_does(model: str, size: str) -> None:
    assert composed(model, size) == settings_of(compose([f"model={model}", f"size={size}"]))


@pytest.mark.parametrize("model", PRESETS)
def test_the_papers_form_takes_a_step(model: str) -> None:
    config, train = composed(model, "paper")
    check(config)
    recipe = config.recipe
    settings = {name: value for name, value in vars(recipe).items() if name != "sequence_length"}
    assert settings.items() <= train.items()
    assert parameters_after_a_meta_step(config)


@pytest.mark.parametrize("model", SIZED)
def test_the_gpu_form_takes_a_step(model: str) -> None:
    config, train = composed(model, "gpu")
    check(config)
    assert config.tokenizer is None and config.weights == "random" and train["batch"] is None
    assert parameters_after_a_meta_step(config)


@pytest.mark.parametrize(("size", "least", "most"), [("small", 1e5, 3e5), ("tiny", 7e5, 1.3e6)])
@pytest.mark.parametrize("model", SIZED)
def test_the_small_forms_train_and_are_small(model: str, size: str, least: float, most: float) -> None:
    config, train = composed(model, size)
    check(config)
    assert config.tokenizer is None and config.weights == "random" and train["batch"] is None
    assert least < parameters_after_a_step(config) <= most


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model", SIZED)
def test_the_learning_rate_reaches_its_end(model: str, size: str) -> None:
    """A run by steps ends at `end_factor`; none has a warm-up longer than itself."""
    config, train = composed(model, size)
    steps, train["lr"] = train["steps"], train["lr"] or config.recipe.lr
    assert (steps is None) != (train["epochs"] is None)
    if steps is not None and train["schedule"] != "steps":  # which has no end
        names = ("lr", "warmup_steps", "end_factor", "schedule")
        settings = TrainConfig(**{name: train[name] for name in names})
        schedule = TrainingSchedule(settings, steps, None, steps, decay_steps=1)
        rates = [schedule.rate(step) for step in (train["warmup_steps"], steps)]
        assert rates == pytest.approx([train["lr"], train["lr"] * train["end_factor"]])
