"""SDP4Bit's GPT models (Table 7), pre-trained on the Pile in Megatron-LM.

Stated: layers, hidden sizes, sequences of 2048 tokens (Table 7); AdamW with betas 0.9 and 0.95,
epsilon 1e-8, weight decay 0.1, 256 sequences a step and the rates of 125M, 350M, 1.3B and 6.7B
(Table 9); 80,000 iterations (§5.1). Those rates are GPT-3's for the same sizes (Brown et al. 2020,
Table 2.1), so what is not stated is read as GPT-3's too:

- heads: GPT-3's, except at 1.3B, where its 24 heads of 128 do not make 2048: 16 of 128 do;
- schedule: cosine to a tenth after a warm-up of 375 million tokens, 715 steps of 256 x 2048 (appendix B);
- clipping at norm 1, as by default.

Dropout is Megatron-LM's default, 0.1. The micro-batch is the throughput runs' single sequence
(appendix D); how many GPUs share the 256 is not stated, so a worker accumulates what the others do
not take. The tokenizer is read as GPT-2's, Megatron-LM's usual one.
"""

from __future__ import annotations

from gradwire.harness.models.papers.gpt2 import gpt
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

ITERATIONS = 80_000
WARMUP_STEPS = 715


def gpt_125m() -> ModelConfig:
    """125M parameters (Tables 1 and 3, Figure 5)."""
    return _gpt("gpt_125m", 12, 768, 12, _pretraining(6e-4))


def gpt_350m() -> ModelConfig:
    """350M parameters (Table 1): 356M by its layers and hidden size, as GPT-3's "350M"."""
    return _gpt("gpt_350m", 24, 1024, 16, _pretraining(3e-4))


def gpt_1_3b() -> ModelConfig:
    """1.3B parameters (Tables 1, 2 and 4)."""
    return _gpt("gpt_1_3b", 24, 2048, 16, _pretraining(2e-4))


def gpt_2_7b() -> ModelConfig:
    """2.7B parameters (Table 2, Figure 8). Table 7 has no row for it: GPT-3's layers and hidden size."""
    return _gpt("gpt_2_7b", 32, 2560, 32, _throughput(1.6e-4))


def gpt_6_7b() -> ModelConfig:
    """6.7B parameters (Table 2, Figures 1, 7 and 9)."""
    return _gpt("gpt_6_7b", 32, 4096, 32, _pretraining(1.2e-4))


def gpt_13b() -> ModelConfig:
    """13B parameters (Table 2, Figure 7)."""
    return _gpt("gpt_13b", 40, 5120, 40, _throughput(1e-4))


def gpt_18b() -> ModelConfig:
    """18B parameters (Table 2). GPT-3 has no such size: heads of 128 and the rate of 13B."""
    return _gpt("gpt_18b", 40, 6144, 48, _throughput(1e-4))


def _gpt(name: str, num_layers: int, hidden_size: int, num_heads: int, recipe: RecipeConfig) -> ModelConfig:
    return gpt(
        name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        recipe=recipe,
        context=2048,
        paper_dataset="pile",
    )


def _pretraining(lr: float) -> RecipeConfig:
    """A model that is trained to the end for its loss."""
    return _recipe(lr, batch=256, steps=ITERATIONS, warmup_steps=WARMUP_STEPS)


def _throughput(lr: float) -> RecipeConfig:
    """A model that is only timed: 20 iterations of warm-up and 10 that count, one sequence per worker (§5.3,
    appendix D)."""
    return _recipe(lr, batch=None, steps=30, warmup_steps=0)


def _recipe(lr: float, *, batch: int | None, steps: int, warmup_steps: int) -> RecipeConfig:
    return RecipeConfig(
        sequence_length=2048,
        micro_batch=1,
        batch=batch,
        lr=lr,
        weight_decay=0.1,
        beta2=0.95,
        warmup_steps=warmup_steps,
        schedule="cosine",
        end_factor=0.1,
        steps=steps,
        epochs=None,
        schedule_epochs=None,
    )
