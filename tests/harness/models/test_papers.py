"""The presets against the papers' tables and the published models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers
from presets import PRESETS, preset

import gradwire.harness.models
from gradwire.harness.models.build import build_model, transformers_config
from gradwire.harness.models.families import HEADS
from gradwire.harness.models.vision import VISION, missing_package

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "llama1b": 1_235_814_400,
    "llama1b_mmlu": 1_235_814_400,
    "gemma1b": 999_885_952,
    "bert_large": 335_174_458,
    "smollm2": 134_515_008,
    "minilm_glue": 22_713_986,
}
"""The parameters of the checkpoints on the Hugging Face hub (MiniLM's with the head for two labels)."""

PRINTED = {
    "tinybert": "14.5M",
    "tinybert_glue": "14.5M",
    "gpt_125m": "125M",
    "gpt_350m": "350M",
    "gpt_1_3b": "1.3B",
    "gpt_2_7b": "2.7B",
    "gpt_6_7b": "6.7B",
    "gpt_13b": "13B",
    "gpt_18b": "18B",
    "gpt_345m": "345M",
    "gpt_2_5b": "2.5B",
    "gpt_12_1b": "12.1B",
    "bert_345m": "345M",
    "resnet50": "25.6M",
    "resnet_small": "0.18M",
    "resnext101": "44.2M",
}
LABELS = {"resnet50": 1000, "resnet_small": 10, "resnext101": 1000}
"""Numbers of labels with which models for images have the printed size: ImageNet's, as in AQGB Table 1."""

"""Model sizes as the papers print them (TinyBERT's from its own paper)."""

APPROXIMATE = {
    "tinybert": 0.01,
    "tinybert_glue": 0.011,
    "gpt_350m": 0.02,
    "gpt_345m": 0.03,
    "bert_345m": 0.03,
}
"""Names that are no exact counts: how far the model is from its name, relatively."""

COPIED_EMBEDDING = ("gpt_2_5b", "gpt_12_1b")
"""Models whose size includes the last pipeline stage's copy of the embedding."""


def num_parameters(name: str) -> int:
    config = preset(name)
    auto = getattr(transformers, HEADS[config.objective])
    if config.family in VISION:
        if (reason := missing_package(config.family)) is not None:
            pytest.skip(reason)
        labels = [str(label) for label in range(LABELS[name])]
        with torch.device("meta"):
            return sum(p.numel() for p in build_model(config, seed=0, labels=labels).parameters())
    with torch.device("meta"):
        model = auto.from_config(transformers_config(config, config.vocab_size))
    return sum(parameter.numel() for parameter in model.parameters())


def rounded(count: float, like: str) -> str:
    unit = {"M": 1e6, "B": 1e9}[like[-1]]
    digits = len(like.partition(".")[2]) - 1 if "." in like else 0
    return f"{count / unit:.{digits}f}{like[-1]}"


def test_every_preset_is_checked() -> None:
    assert set(PUBLISHED) | set(PRINTED) == set(PRESETS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_published_number_of_parameters(name: str) -> None:
    assert num_parameters(name) == PUBLISHED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_other_models_have_the_papers_size(name: str) -> None:
    config, count, printed = preset(name), num_parameters(name), PRINTED[name]
    if name in COPIED_EMBEDDING:
        assert rounded(count, printed) != printed
        count += config.vocab_size * config.hidden_size
    if name in APPROXIMATE:
        size = float(printed[:-1]) * {"M": 1e6, "B": 1e9}[printed[-1]]
        assert count == pytest.approx(size, rel=APPROXIMATE[name])
    else:
        assert rounded(count, printed) == printed


def test_the_readme_lists_every_model() -> None:
    text = (Path(gradwire.harness.models.__path__[0]) / "README.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    told = {re.sub("`", "", name): tuple(rest) for name, *rest in rows if name.startswith("`")}
    assert set(told) == set(PRESETS)
    for name, (_paper, parameters, objective, dataset) in told.items():
        config = preset(name)
        if missing_package(config.family) is not None:
            continue
        assert (objective, dataset) == (config.objective, config.paper_dataset)
        assert parameters == rounded(num_parameters(name), like=parameters)


def test_gemma_is_the_published_one() -> None:
    """google/gemma-3-1b-pt's config.json, in the words of transformers."""
    from transformers import Gemma3TextConfig

    described = transformers_config(preset("gemma1b"), 262144).to_dict()
    published = Gemma3TextConfig(
        hidden_size=1152,
        intermediate_size=6912,
        num_hidden_layers=26,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        vocab_size=262144,
        max_position_embeddings=32768,
        sliding_window=512,
        sliding_window_pattern=6,
        rope_theta=1000000,
        rope_local_base_freq=10000,
        rms_norm_eps=1e-6,
    ).to_dict()
    chosen_here = {"use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "dtype"}
    differing = {key for key in published if described.get(key) != published[key]}
    assert differing <= chosen_here | {"_sliding_window_pattern", "sliding_window_pattern"}
    assert described["layer_types"].count("full_attention") == 4


def test_llama_has_the_published_rotary_constants() -> None:
    described = transformers_config(preset("llama1b"), 128256)
    assert described.rope_parameters == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


@pytest.mark.parametrize(
    ("name", "tokens", "lr", "end_factor", "falling", "epochs"),
    [
        ("bert_large", 2048, 5e-5, 1 / 16, 15, 21),
        ("llama1b", 3000, 2e-5, 1 / 8, 2, 3),
        ("gemma1b", 3000, 1.4e-5, 1 / 8, 2, 3),
    ],
)
def test_dynamiqs_recipes(
    name: str, tokens: int, lr: float, end_factor: float, falling: float, epochs: float
) -> None:
    """DynamiQ Table 1."""
    recipe = preset(name).recipe
    assert recipe.micro_batch * recipe.sequence_length == tokens
    assert (recipe.lr, recipe.end_factor, recipe.schedule_epochs, recipe.epochs) == (
        lr,
        end_factor,
        falling,
        epochs,
    )
    assert (recipe.steps, recipe.batch, recipe.schedule, recipe.warmup_steps) == (None, None, "linear", 0)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "lr"),
    [
        ("gpt_125m", 12, 768, 6e-4),
        ("gpt_350m", 24, 1024, 3e-4),
        ("gpt_1_3b", 24, 2048, 2e-4),
        ("gpt_2_7b", None, None, None),
        ("gpt_6_7b", 32, 4096, 12e-5),
        ("gpt_13b", 40, 5120, None),
        ("gpt_18b", 40, 6144, None),
    ],
)
def test_sdp4bits_models(name: str, layers: int | None, hidden: int | None, lr: float | None) -> None:
    """SDP4Bit Tables 7 and 9, §5.1: more than 40 billion tokens; None where the tables have no entry."""
    config = preset(name)
    recipe = config.recipe
    assert (config.num_layers, config.hidden_size) == (
        layers or config.num_layers,
        hidden or config.hidden_size,
    )
    assert (recipe.sequence_length, recipe.weight_decay, recipe.beta2) == (2048, 0.1, 0.95)
    if lr is None:
        assert (recipe.batch, recipe.steps) == (None, 30)
    else:
        assert (recipe.lr, recipe.batch) == (lr, 256)
        assert 40e9 < recipe.steps * recipe.batch * recipe.sequence_length < 45e9
        warm_up_tokens = recipe.warmup_steps * recipe.batch * recipe.sequence_length
        assert warm_up_tokens == pytest.approx(375e6, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "batch"), [("gpt_2_5b", 52, 1920, 64), ("gpt_12_1b", 76, 3584, 128)]
)
def test_edgcs_models(name: str, layers: int, hidden: int, batch: int) -> None:
    """EDGC Table II."""
    config = preset(name)
    recipe = config.recipe
    assert (config.num_layers, config.hidden_size) == (layers, hidden)
    assert (recipe.micro_batch, recipe.batch, recipe.steps) == (4, batch, 230_000)
    assert recipe.lr * recipe.end_factor == pytest.approx(1e-5)
