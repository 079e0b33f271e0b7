"""Models for images: the meaning of their settings, refusals, and models without a package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from presets import preset

from gradwire.harness.models import vision
from gradwire.harness.models.build import build_model, save_model
from gradwire.harness.models.settings import ModelConfig, check
from gradwire.harness.models.vision import num_parameters, stage_widths
from gradwire.harness.models.weights import weights_available

SMALL, LARGE, GROUPED = (preset(name) for name in ("resnet_small", "resnet50", "resnext101"))


def test_a_stage_has_twice_the_channels_of_the_one_before() -> None:
    assert stage_widths(SMALL) == [16, 32, 64] and stage_widths(LARGE) == [64, 128, 256, 512]


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, bottleneck=True)], ids=["basic", "bottleneck"])
def test_memory_counts_on_most_of_the_parameters(config: ModelConfig) -> None:
    model = build_model(config, seed=0, labels=("a", "b"))
    actual = sum(parameter.numel() for parameter in model.parameters())
    assert 0.7 * actual < num_parameters(config) < actual


def test_weights_follow_from_the_seed_and_are_saved_without_a_tokenizer(tmp_path: Path) -> None:
    import transformers

    one, same, other = (build_model(SMALL, seed=seed, labels=("a", "b")) for seed in (0, 0, 1))
    values = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, same, other)]
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])
    save_model(one, None, tmp_path / "saved")
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "saved").eval()
    pixels = torch.ones(2, 3, 32, 32)
    assert torch.equal(again(pixel_values=pixels).logits, one.eval()(pixel_values=pixels).logits)
    assert again.config.id2label == {0: "a", 1: "b"}


REFUSED = [
    (replace(SMALL, depths=[]), "model.depths=[] with model.hidden_size=64"),
    (replace(SMALL, hidden_size=66), "model.hidden_size=66: each stage has half the channels"),
    (replace(SMALL, groups=2), "model.groups=2: a resnet has none"),
    (replace(GROUPED, groups=3), "model.groups=3 with model.bottleneck=true"),
    (replace(GROUPED, bottleneck=False), "model.bottleneck=false: a resnext has bottlenecks"),
    (replace(GROUPED, hidden_size=64), "the first stage has 16 channels to divide"),
    (replace(SMALL, weights="pretrained"), "use model.weights=random"),
    (replace(SMALL, objective="causal"), "resnet supports only image_classification"),
    (replace(preset("gpt2"), objective="image_classification"), "gpt2 supports only causal, choice"),
]


@pytest.mark.parametrize(("config", "part"), REFUSED)
def test_what_cannot_work_is_refused_in_one_line(config: ModelConfig, part: str) -> None:
    with pytest.raises(ValueError) as refusal:
        check(config)
    assert part in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_missing_package_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    assert weights_available(LARGE) is None
    said = weights_available(GROUPED)
    assert said is not None and "needs timm, which is not installed" in said and "gradwire[images]" in said
    with pytest.raises(ValueError, match="needs timm"):
        build_model(GROUPED, seed=0)
