"""Whether pretrained weights can be had, answered before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

from .config import ModelConfig

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
WAYS_OUT = "use size=tiny, model.path=<folder with the weights> or model.weights=random"
TIMEOUT_S = 5.0


def is_offline() -> bool:
    """Whether the Hugging Face hub must not be asked (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    truthy = {"1", "on", "yes", "true"}
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in truthy for name in names)


def weights_available(config: ModelConfig) -> str | None:
    """None, or in one line why the model's weights cannot be had and the ways out.

    Looks at the local folder or the Hugging Face cache, and asks the hub (one request of at most
    five seconds) only for weights that are not there and unless told to stay offline. Imports
    neither torch nor transformers.
    """
    if config.weights == "random":
        return None
    if config.path is not None:
        return _missing_from_folder(Path(config.path).expanduser())
    if _in_cache(config.pretrained):
        return None
    where = f"model.pretrained={config.pretrained}: not in the Hugging Face cache"
    if is_offline():
        return f"{where} and HF_HUB_OFFLINE is set; {WAYS_OUT}"
    refused = _refused_by_hub(config.pretrained)
    return refused and f"{where} and {refused}; {WAYS_OUT}"


def _missing_from_folder(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"model.path={folder}: no such folder; {WAYS_OUT}"
    if not (folder / "config.json").is_file():
        return f"model.path={folder}: has no config.json (the Hugging Face layout is expected); {WAYS_OUT}"
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        return f"model.path={folder}: has none of {', '.join(WEIGHT_FILES)}; {WAYS_OUT}"
    return None


def _in_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    def cached(filename: str) -> bool:
        return isinstance(try_to_load_from_cache(name, filename), str)

    try:
        return cached("config.json") and any(map(cached, WEIGHT_FILES))
    except HFValidationError:
        return False


def _refused_by_hub(name: str) -> str | None:
    """None if the hub would hand out the weights, else why not."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=TIMEOUT_S)
    except GatedRepoError:
        return "the hub wants its licence accepted and a token (hf auth login)"
    except (RepositoryNotFoundError, HFValidationError):
        return "the hub knows no such model, or shows it only to its owner (hf auth login)"
    except Exception as error:  # the HTTP client's own errors: no route, proxy, timeout, 5xx
        return f"the hub did not answer ({type(error).__name__})"
    return None
