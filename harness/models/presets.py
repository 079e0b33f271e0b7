"""The papers' models and hyper-parameters."""

from __future__ import annotations

from .config import ModelConfig, RecipeConfig


def gpt2() -> ModelConfig:
    """GPT-2 with 124M parameters: EDGC and SDP4Bit pre-train this family."""
    return ModelConfig()


def llama1b() -> ModelConfig:
    """Llama 3.2 1B on UltraChat (DynamiQ Table 1: LLaMA 1B, chat)."""
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
        recipe=RecipeConfig(
            sequence_length=3000, micro_batch=1, lr=2e-5, end_factor=1 / 8, epochs=3, schedule_epochs=2
        ),
    )


def bert_large() -> ModelConfig:
    """BERT-large on Wikitext-103 (DynamiQ Table 1: masked LM).

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


PRESETS = {"gpt2": gpt2, "llama1b": llama1b, "bert_large": bert_large}
