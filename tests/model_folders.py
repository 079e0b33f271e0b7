"""Small Hugging Face folders of families that no preset is of, with a tokenizer trained on some words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmark_files import WORDS

from gradwire.harness.data.tokenizer import train_bpe
from gradwire.harness.models.settings import END, MASK, PAD

ENTRIES = 300
USUAL = {"vocab_size": ENTRIES, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}


def _neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**USUAL, intermediate_size=64, max_position_embeddings=128))


def _roberta() -> Any:
    from transformers import RobertaConfig, RobertaForMaskedLM

    size = {"intermediate_size": 64, "max_position_embeddings": 65, "type_vocab_size": 1}
    return RobertaForMaskedLM(RobertaConfig(**USUAL, **size, pad_token_id=0))


def _distilbert() -> Any:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    size = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
    return DistilBertForSequenceClassification(DistilBertConfig(vocab_size=ENTRIES, **size))


MADE = {"neox": _neox, "roberta": _roberta, "distilbert": _distilbert}


def save_folder(folder: Path, name: str) -> Path:
    """A model of `MADE` with random weights, as `save_pretrained` writes it, next to its tokenizer."""
    import torch
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    MADE[name]().save_pretrained(folder)
    bpe = folder.parent / "bpe.json"
    bpe.write_text(train_bpe([" ".join(WORDS)] * 2, ENTRIES))
    special = {"pad_token": PAD, "bos_token": END, "eos_token": END, "mask_token": MASK}
    PreTrainedTokenizerFast(tokenizer_file=str(bpe), **special).save_pretrained(folder)
    return folder


def write_config(folder: Path, **changes: Any) -> Path:
    """A folder with no more than the config.json of a GPT-NeoX: keys are changed, or left out where None."""
    usual = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "tie_word_embeddings": False}
    found = {**usual, **USUAL, "intermediate_size": 64, "max_position_embeddings": 128, **changes}
    folder.mkdir(exist_ok=True)
    settings = {key: value for key, value in found.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder
