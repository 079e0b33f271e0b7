"""EDGC's models (Table II, §III and §V-C), pre-trained in Megatron-LM.

Stated: layers and hidden sizes of the two large ones, a micro-batch of 4, mini-batches of 64 and 128
sequences (read: of 2.5B and 12.1B; 64 for the smaller ones), 230,000 iterations, OpenWebText. Not stated, and
read as in the Megatron-LM paper (Shoeybi et al. 2019, §4.2): sequences of 1024 tokens, heads of 96 at 2.5B,
Adam with weight decay 0.01, a rate of 1.5e-4 that climbs over the first hundredth of the iterations and falls
along a cosine to 1e-5, clipping at norm 1, dropout 0.1.

"2.5B" and "12.1B" count the embedding twice: under pipeline parallelism the last stage has a copy of it as
output projection. If it is counted once, they have 2.40B and 11.9B parameters.
"""

from __future__ import annotations

from gradwire.harness.models.papers.gpt2 import gpt
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

ITERATIONS = 230_000
WARMUP_STEPS = ITERATIONS // 100


def gpt_345m() -> ModelConfig:
    """GPT2-345M (Table VI, Figures 2 to 4, 10, 13 and 14), read as GPT-2 medium because Figure 3 shows its
    layers.

    OpenAI first called that model 345M; it has 355M parameters.
    """
    recipe = _recipe(batch=64, lr=1.5e-4)
    return gpt("gpt_345m", num_layers=24, hidden_size=1024, num_heads=16, recipe=recipe)


def gpt_2_5b() -> ModelConfig:
    """GPT2-2.5B (Tables II to IV, Figures 9 and 11)."""
    recipe = _recipe(batch=64, lr=1.5e-4)
    return gpt("gpt_2_5b", num_layers=52, hidden_size=1920, num_heads=20, recipe=recipe)


def gpt_12_1b() -> ModelConfig:
    """GPT2-12.1B (Tables II to IV, Figure 11). Heads: 28 of 128; four-way tensor parallelism divides them."""
    recipe = _recipe(batch=128, lr=1.5e-4)
    return gpt("gpt_12_1b", num_layers=76, hidden_size=3584, num_heads=28, recipe=recipe)


def bert_345m() -> ModelConfig:
    """BERT-345M (Tables V and VII, Figures 2 and 12): BERT-large from random weights.

    Its rate and linear schedule are those of Megatron-LM's BERT (1e-4 to 1e-5, sequences of 512
    tokens). The paper trains it on Wikipedia; Wikitext-103 is Wikipedia's good articles.
    """
    return ModelConfig(
        name="bert_345m",
        family="bert",
        objective="masked",
        num_layers=24,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=16,
        intermediate_size=4096,
        vocab_size=30522,
        context=512,
        pretrained="google-bert/bert-large-uncased",
        tokenizer="google-bert/bert-large-uncased",
        paper_dataset="wikitext103",
        recipe=_recipe(batch=64, lr=1e-4, sequence_length=512, schedule="linear"),
    )


def _recipe(*, batch: int, lr: float, sequence_length: int = 1024, schedule: str = "cosine") -> RecipeConfig:
    return RecipeConfig(
        sequence_length=sequence_length,
        micro_batch=4,
        batch=batch,
        lr=lr,
        warmup_steps=WARMUP_STEPS,
        schedule=schedule,
        end_factor=1e-5 / lr,
        steps=ITERATIONS,
        epochs=None,
        schedule_epochs=None,
    )
