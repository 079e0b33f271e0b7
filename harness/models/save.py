"""Saves a model as a folder that transformers and lm-eval load by path."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.harness.files.writing import as_new_files, writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path | str) -> None:
    """Writes weights (safetensors), config and tokenizer, if there is one, to `folder`, replacing what was
    there.

    The config takes the tokenizer's special tokens, so that generated text ends where it should. All files
    are written beside `folder` first and renamed at the end: a reader, or a restart after a crash, finds the
    complete new folder, the complete old one, or none, but never a part. Only one process may call this.
    Raises UnwritableFileError.
    """
    if tokenizer is not None:
        _adopt_special_tokens(model, tokenizer)
    folder = Path(folder)
    with writing(folder), _beside(folder) as temporary:
        fresh, old = Path(temporary, "new"), Path(temporary, "old")
        model.save_pretrained(fresh)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
        as_new_files(*(path for path in fresh.iterdir() if path.is_file()))
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)


def _beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for the new files. The old ones are moved there as well and removed with it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent)


def _adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Leaves a config alone that has several end-of-sequence tokens: published chat models know better."""
    for config in (model.config, getattr(model, "generation_config", None)):
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            theirs = getattr(tokenizer, name)
            if config is not None and theirs is not None and not isinstance(getattr(config, name), list):
                setattr(config, name, theirs)
