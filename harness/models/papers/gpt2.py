"""GPT-2 as published, and the shape that it shares with the papers' GPT models."""

from __future__ import annotations

from dataclasses import replace

from gradwire.harness.models.settings import ModelConfig, RecipeConfig

TOKENIZER = "openai-community/gpt2"
VOCABULARY = 50257
"""Entries of GPT-2's tokenizer. Megatron-LM, which SDP4Bit and EDGC train with, pads it to a multiple of 128
x tensor-parallel size (50304 at size 1) for speed. The added rows are never used, so they are left out here.
"""


def gpt2() -> ModelConfig:
    """GPT-2 with 124M parameters, trained from scratch.

    A short form of `gpt_125m`: SDP4Bit's learning rate for this size and EDGC's micro-batch. It trains by
    epochs rather than by their iterations, so that it fits any text.
    """
    return gpt("gpt2", num_layers=12, hidden_size=768, num_heads=12, recipe=RecipeConfig())


def gpt2_medium() -> ModelConfig:
    """GPT-2 with 355M parameters, trained from scratch like `gpt2`, with SDP4Bit's rate for 350M."""
    config = gpt("gpt2_medium", num_layers=24, hidden_size=1024, num_heads=16, recipe=RecipeConfig(lr=3e-4))
    return replace(config, pretrained="openai-community/gpt2-medium")


def gpt(
    name: str,
    *,
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    recipe: RecipeConfig,
    context: int = 1024,
    paper_dataset: str = "openwebtext",
) -> ModelConfig:
    """A GPT with random weights and GPT-2's vocabulary; its feed-forward layers are 4 x hidden_size wide."""
    return ModelConfig(
        name=name,
        family="gpt2",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        intermediate_size=4 * hidden_size,
        vocab_size=VOCABULARY,
        context=context,
        tokenizer=TOKENIZER,
        paper_dataset=paper_dataset,
        recipe=recipe,
    )
