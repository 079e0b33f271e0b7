"""Small checkpoints with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark_files import WORDS

from gradwire.harness.data.tokenizer import train_bpe
from gradwire.harness.models.build import save_model
from gradwire.harness.models.settings import END, MASK, PAD


def save_random(folder: Path, kind: str = "causal", context: int = 256) -> Path:
    """A model of one layer with random weights, and a tokenizer trained on the benchmarks' words."""
    import torch
    from transformers import PreTrainedTokenizerFast

    (folder.parent / "bpe.json").write_text(train_bpe([" ".join(WORDS)] * 2, 300))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder.parent / "bpe.json"),
        pad_token=PAD,
        bos_token=END,
        eos_token=END,
        mask_token=MASK,
    )
    torch.manual_seed(0)
    save_model(_MADE[kind](len(tokenizer), context), tokenizer, folder)
    return folder


def _gpt2(vocab_size: int, context: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_embd": 32, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=context, **size))


def _bert(vocab_size: int, context: int) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForMaskedLM(BertConfig(vocab_size=vocab_size, max_position_embeddings=context, **size))


_MADE = {"causal": _gpt2, "masked": _bert}
