"""Checks that pretrained weights and tokenizers are available before anything is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from gradwire.harness.files.hostile import files_in
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.models.foreign import check_folder
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.vision import missing_package

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
WEIGHTS_FILE = WEIGHT_FILES[0]
SAFE = WEIGHT_FILES[:2]
"""Formats that hold only tensors; others may hold code, and `model=folder` does not load them."""

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_FILES = (
    *(TOKENIZER_FILE, "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model"),
    "sentencepiece.bpe.model",
)
"""Files of a tokenizer, or files that transformers can make one from."""
WAYS_OUT = "use size=tiny, model.path=<folder with the weights> or model.weights=random"
FOLDER_WAYS_OUT = "give a Hugging Face folder with config.json, model.safetensors and tokenizer.json"
TOKENIZER_WAYS_OUT = (
    "use model.tokenizer=null (train one on the data), model.tokenizer=<folder with a tokenizer.json> "
    "or size=tiny"
)
TIMEOUT_S = 5.0


def is_offline() -> bool:
    """True if requests to the Hugging Face hub are forbidden (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    truthy = {"1", "on", "yes", "true"}
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in truthy for name in names)


def weights_available(config: ModelConfig) -> str | None:
    """Returns None, or one line that says why the model's weights are unavailable and what to do; for random
    weights, why the package that builds the model is missing.

    Checks the local folder or the Hugging Face cache first. Asks the hub (one request of at most five
    seconds) only for weights that are not there, and never in offline mode. Imports neither torch nor
    transformers.
    """
    if config.path is not None and (config.is_folder or config.weights == "pretrained"):
        return _missing_from_folder(config, Path(config.path).expanduser())
    if config.weights == "random":
        return missing_package(config.family)
    assert config.pretrained is not None, "a folder's path comes first"
    where = f"model.pretrained={config.pretrained}"
    reason = not_to_be_had(config.pretrained, "config.json", WEIGHT_FILES)
    return reason and f"{where}: {reason}; {WAYS_OUT}"


def tokenizer_available(config: ModelConfig) -> str | None:
    """Returns None, or one line that says why `model.tokenizer` is unavailable and what to do.

    Checks places in the order of `weights_available`. A tokenizer of null only needs checking for a folder of
    weights, which must include one: with random weights one is trained on the data.
    """
    if config.path is not None and (config.is_folder or config.weights == "pretrained"):
        own = has_tokenizer(Path(config.path).expanduser())
        if config.tokenizer is None and not own:
            also = "or give one by model.tokenizer=<folder or name on the hub>" if config.is_folder else ""
            return (
                f"model.path={config.path}: has no {TOKENIZER_FILE}; save its tokenizer there {also}".strip()
            )
        if config.tokenizer is not None and own:
            return (
                f"model.tokenizer={config.tokenizer} contradicts model.path={config.path}, which has a "
                "tokenizer of its own; leave it out"
            )
    if config.tokenizer is None:
        return None
    where = f"model.tokenizer={config.tokenizer}"
    if folder_named(config.tokenizer):
        folder = Path(config.tokenizer).expanduser()
        reason = None if (folder / TOKENIZER_FILE).is_file() else f"no such folder with a {TOKENIZER_FILE}"
        try:
            reason or list(files_in(folder, remedy=TOKENIZER_WAYS_OUT))
        except UnusableFileError as error:
            return f"{where}: {error}"
    else:
        reason = not_to_be_had(config.tokenizer, TOKENIZER_FILE)
    return reason and f"{where}: {reason}; {TOKENIZER_WAYS_OUT}"


def has_tokenizer(folder: Path) -> bool:
    """True if a model folder also contains its tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def folder_named(name: str) -> bool:
    """True if a name refers to a folder: names on the hub have at most one slash, and not at an end."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).is_dir()


def not_to_be_had(name: str, filename: str, one_of: tuple[str, ...] = ()) -> str | None:
    """Returns None if `filename` (and one of `one_of`) is in the cache or the hub provides it, else the
    reason why not."""
    return absence(_in_cache(name, filename, one_of), name, filename)


def absence(
    in_cache: bool,
    name: str,
    filename: str,
    kind: Literal["model", "dataset"] = "model",
    revision: str | None = None,
) -> str | None:
    """Returns None if a repository is `in_cache` or the hub provides `filename`, else the reason why not.

    The hub is asked once, for at most five seconds, and never offline. A data set may lack the file.
    """
    if in_cache:
        return None
    where = "not in the Hugging Face cache"
    if is_offline():
        return f"{where} and HF_HUB_OFFLINE is set"
    refused = _refused_by_hub(name, filename, kind, revision)
    return refused and f"{where} and {refused}"


def _missing_from_folder(config: ModelConfig, folder: Path) -> str | None:
    where, remedy = f"model.path={config.path}", FOLDER_WAYS_OUT if config.is_folder else WAYS_OUT
    wanted = SAFE if config.is_folder else WEIGHT_FILES
    if not folder.is_dir():
        return f"{where}: no such folder; {remedy}"
    if not (folder / "config.json").is_file():
        return f"{where}: has no config.json (the Hugging Face layout is expected); {remedy}"
    if config.weights == "pretrained" and not any((folder / name).is_file() for name in wanted):
        instead = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
        if instead is not None:
            return (
                f"{where}: has its weights in {instead} alone, which is a pickle and not loaded; save "
                f"them as {WEIGHTS_FILE}, by save_pretrained"
            )
        random = ", or add model.weights=random to train its shape from random weights"
        return f"{where}: has none of {', '.join(wanted)}; {remedy}{random if config.is_folder else ''}"
    try:
        check_folder(folder, remedy=remedy)
    except UnusableFileError as error:
        return f"{where}: {error}"
    return None


def _in_cache(name: str, filename: str, one_of: tuple[str, ...]) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    def cached(filename: str) -> bool:
        return isinstance(try_to_load_from_cache(name, filename), str)

    try:
        return cached(filename) and (not one_of or any(map(cached, one_of)))
    except HFValidationError:
        return False


def _refused_by_hub(
    name: str, filename: str, kind: Literal["model", "dataset"], revision: str | None
) -> str | None:
    """Returns None if the hub provides the file, else the reason why not."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    called, rules = ("model", "licence") if kind == "model" else ("data set", "terms")
    try:
        url = hf_hub_url(name, filename, repo_type=kind, revision=revision)
        get_hf_file_metadata(url, timeout=TIMEOUT_S)
    except GatedRepoError:
        return f"the hub wants its {rules} accepted and a token (hf auth login)"
    except RevisionNotFoundError:
        return f"the hub knows no revision {revision} of it ({kind}.revision=)"
    except (RepositoryNotFoundError, HFValidationError):
        return f"the hub knows no such {called}, or it is private (hf auth login)"
    except EntryNotFoundError:
        return f"on the hub it has no {filename}" if kind == "model" else None
    except Exception as error:  # the HTTP client's own errors: no route, proxy, timeout, 5xx
        return f"the hub did not answer ({type(error).__name__})"
    return None
