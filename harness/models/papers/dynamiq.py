"""DynamiQ's models: three fine-tuned from published weights (Table 1), TinyBERT for many workers (§6.1).

Not stated: the optimizer (AdamW here, which §2 cites), dropout (each published model's own), the seed.
"Initial LR" is read as the rate of the first step, that is LinearLR with a start factor of 1.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.harness.models.settings import ModelConfig, RecipeConfig


def llama1b() -> ModelConfig:
    """Llama 3.2 1B on UltraChat (Table 1: LLaMA 1B, chat)."""
    return ModelConfig(
        name="llama1b",
        family="llama",
        num_layers=16,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=8,
        intermediate_size=8192,
        vocab_size=128256,
        context=131072,
        dropout=0.0,
        weights="pretrained",
        pretrained="meta-llama/Llama-3.2-1B",
        paper_dataset="ultrachat",
        recipe=_chat_recipe(lr=2e-5),
    )


def llama1b_mmlu() -> ModelConfig:
    """Llama 3.2 1B on MMLU (Table 1: LLaMA 1B, MMLU).

    Not stated: what is trained on. Read: MMLU's own training split, auxiliary_train, whose questions of some
    400 tokens make the printed "~ 1600" tokens in a batch of 4. Longer ones than 1024 tokens lose their
    beginning. Not stated either: the form of the questions (data/README.md has ours) and the split evaluated
    on (validation here).
    """
    return replace(
        llama1b(),
        name="llama1b_mmlu",
        objective="choice",
        paper_dataset="mmlu",
        recipe=RecipeConfig(
            sequence_length=1024, micro_batch=4, lr=6e-6, end_factor=1 / 8, epochs=3, schedule_epochs=2
        ),
    )


def gemma1b() -> ModelConfig:
    """Gemma 3 1B on UltraChat (Table 1: Gemma 1B, chat).

    "Gemma 1B" cites the Gemma 3 report. It has two 1B models; this is the pretrained one, not the
    instruction-tuned one, as with Llama.
    """
    return ModelConfig(
        name="gemma1b",
        family="gemma",
        num_layers=26,
        hidden_size=1152,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        intermediate_size=6912,
        vocab_size=262144,
        context=32768,
        dropout=0.0,
        weights="pretrained",
        pretrained="google/gemma-3-1b-pt",
        paper_dataset="ultrachat",
        recipe=_chat_recipe(lr=1.4e-5),
    )


def bert_large() -> ModelConfig:
    """BERT-large on Wikitext-103 (Table 1: masked LM).

    The table prints 2048 tokens per batch and a batch of 1, but BERT has 512 positions: four
    sequences of 512 are the same 2048 tokens.
    """
    return ModelConfig(
        name="bert_large",
        family="bert",
        objective="masked",
        num_layers=24,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=16,
        intermediate_size=4096,
        vocab_size=30522,
        context=512,
        weights="pretrained",
        pretrained="google-bert/bert-large-uncased",
        paper_dataset="wikitext103",
        recipe=RecipeConfig(
            sequence_length=512, micro_batch=4, lr=5e-5, end_factor=1 / 16, epochs=21, schedule_epochs=15
        ),
    )


def tinybert() -> ModelConfig:
    """TinyBERT, 4 layers, as a masked language model on Wikitext-103.

    No paper trains it so; DynamiQ's is `tinybert_glue`, whose batch, rate and schedule it has.
    """
    return ModelConfig(
        name="tinybert",
        family="bert",
        objective="masked",
        num_layers=4,
        hidden_size=312,
        num_heads=12,
        num_kv_heads=12,
        intermediate_size=1200,
        vocab_size=30522,
        context=512,
        weights="pretrained",
        pretrained="huawei-noah/TinyBERT_General_4L_312D",
        paper_dataset="wikitext103",
        recipe=RecipeConfig(
            sequence_length=128, micro_batch=32, lr=3e-5, end_factor=1 / 8, epochs=3, schedule_epochs=2
        ),
    )


def tinybert_glue() -> ModelConfig:
    """TinyBERT, 4 layers, on GLUE, for 8 to 64 workers (§6.1, Figure 11).

    Which of GLUE's tasks, the batch, the rate and the schedule are not stated. Read: SST-2, its largest task
    of one sentence; TinyBERT's own fine-tuning (Jiao et al. 2020, §4: up to 32 sequences of 128 tokens and
    3e-5, 3 epochs) on the schedule of DynamiQ's other runs of 3 epochs.
    """
    return replace(tinybert(), name="tinybert_glue", objective="classification", paper_dataset="glue")


def _chat_recipe(lr: float) -> RecipeConfig:
    return RecipeConfig(
        sequence_length=3000, micro_batch=1, lr=lr, end_factor=1 / 8, epochs=3, schedule_epochs=2
    )
