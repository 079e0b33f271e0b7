"""Save a model as a folder that transformers and lm-eval load by path."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.harness.files.writing import as_new_files, writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path | str) -> None:
    """Write weights (safetensors), config and tokenizer to `folder`, replacing what was there.

    The config's special tokens become the tokenizer's, so that generated text ends where it should.
    Everything is written beside `folder` first and renamed at the end: a reader, or a restart after
    a crash, finds the complete new folder, the complete old one, or none, never a part. To be called
    by one process. Raises UnwritableFileError.
    """
    _adopt_special_tokens(model, tokenizer)
    folder = Path(folder)
    with writing(folder), _beside(folder) as temporary:
        fresh, old = Path(temporary, "new"), Path(temporary, "old")
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        as_new_files(*(path for path in fresh.iterdir() if path.is_file()))
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)


def _beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder of its own for the new files: the old ones are moved there too, and go with it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent)


def _adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A config with several ends of sequence (published chat models) knows better and stays."""
    for config in (model.config, getattr(model, "generation_config", None)):
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            theirs = getattr(tokenizer, name)
            if config is not None and theirs is not None and not isinstance(getattr(config, name), list):
                setattr(config, name, theirs)
