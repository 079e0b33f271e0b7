"""Builds a model from its weights or from a seed, and saves it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.writing import as_new_files, writing
from gradwire.harness.models.described import kind_of
from gradwire.harness.models.families import FAMILIES, HEADS
from gradwire.harness.models.foreign import in_a_line
from gradwire.harness.models.settings import END_ID, PAD_ID, ModelConfig, check
from gradwire.harness.models.vision import VISION, missing_package
from gradwire.harness.models.weights import FOLDER_WAYS_OUT, WAYS_OUT, is_offline, weights_available
from gradwire.harness.runtime.seeding import derive_seed

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ATTENTION = "sdpa"
"""PyTorch's fused attention. Its results are reproducible bit for bit: on CPUs for a given number of threads,
on GPUs under `torch.use_deterministic_algorithms`. Its memory grows with the sequence length, not with its
square as eager attention's does."""


def build_model(
    config: ModelConfig, vocab_size: int | None = None, *, seed: int, labels: Sequence[str] = ()
) -> PreTrainedModel:
    """Returns the model in float32 on the CPU, in training mode, with the head for its objective.

    With `weights=random` its parameters are a pure function of (config, vocab_size, seed), and the caller's
    random state is unchanged; `vocab_size` defaults to `config.vocab_size`. With `weights=pretrained` or
    `model=folder` the weights' files determine the shape, and `vocab_size` is not used; a head that the
    weights lack is initialized from the seed. `labels` are the classes of a classification; models for images
    have one output per label. No code from the hub is run.

    Raises ValueError if a field of `config` is invalid or the weights are unavailable.
    """
    check(config)
    named = _named(labels) if config.objective == "classification" else {}
    with _seeded(derive_seed(seed, "model")):
        if config.family in VISION:
            model = _for_images(config, labels)
        elif config.weights == "pretrained":
            model = _pretrained(config, named)
        elif config.is_folder:
            model = _random_of_folder(config, named)
        else:
            described = transformers_config(config, vocab_size or config.vocab_size)
            described.update(named)
            model = _auto_class(config).from_config(
                described, attn_implementation=ATTENTION, dtype=torch.float32
            )
    model.train()
    return model


def without_values(config: ModelConfig, labels: Sequence[str] = ()) -> PreTrainedModel:
    """The model of `build_model` with tensors that have shapes but no values. Of a folder's weights only the
    headers are read; missing weights are refused as in loading."""
    if config.weights == "pretrained" and config.path is not None:
        named = _named(labels) if config.objective == "classification" else {}
        return _pretrained(config, named, device_map="meta")
    with torch.device("meta"):
        return build_model(config, seed=0, labels=labels)


def num_segments(model: PreTrainedModel) -> int:
    """The number of sentences per row that the model distinguishes by `token_type_ids`; 0 if it does not."""
    return int(getattr(model.config, "type_vocab_size", None) or 0)


def _for_images(config: ModelConfig, labels: Sequence[str]) -> PreTrainedModel:
    import transformers

    reason = missing_package(config.family)
    if reason is not None:
        raise ValueError(reason)
    family = VISION[config.family]
    described = getattr(transformers, family.config_class)(**family.values(config), **_named(labels))
    model: PreTrainedModel = _auto_class(config).from_config(described, dtype=torch.float32)
    return model


def _named(labels: Sequence[str]) -> dict[str, Any]:
    """The labels in the form that transformers expects; without labels transformers assumes two."""
    by_index = dict(enumerate(labels or ("LABEL_0", "LABEL_1")))
    return {"id2label": by_index, "label2id": {name: index for index, name in by_index.items()}}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the CPU's random numbers with `seed` in this block, and restores their state afterwards.

    Only the CPU's generator is changed: torch.manual_seed would also reseed the GPUs'.
    """
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def transformers_config(config: ModelConfig, vocab_size: int) -> PretrainedConfig:
    """The family's own config of a model with random weights."""
    import transformers

    mapping = FAMILIES[config.family]
    values: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in mapping.fields.items()}
    if config.dropout is not None:
        values |= dict.fromkeys(mapping.dropout_fields, config.dropout)
    values |= mapping.extras(config)
    if config.tokenizer is None:  # else the family's own: our padding id is a word of other tokenizers
        values |= {"pad_token_id": PAD_ID, "bos_token_id": END_ID, "eos_token_id": END_ID}
    made: PretrainedConfig = getattr(transformers, mapping.config_class)(
        vocab_size=vocab_size, use_cache=False, **values
    )
    return made


def _auto_class(config: ModelConfig) -> Any:
    import transformers

    return getattr(transformers, HEADS[config.objective])


def quiet_transformers() -> None:
    """Silences the library's warnings and progress bars, which every rank would print."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _random_of_folder(config: ModelConfig, named: Mapping[str, Any]) -> PreTrainedModel:
    """A model of a folder's shape; raises UnusableFileError."""
    place = os.path.expanduser(config.path or "")
    try:
        described = _folders_own(place)
        described.update({**_dropouts(config), **named})
        model: PreTrainedModel = _auto_class(config).from_config(described, dtype=torch.float32)
        _uncached(model)
    except Exception as error:  # whatever transformers makes of settings from anywhere
        problem = f"has a config.json that cannot be used ({in_a_line(error)})"
        raise UnusableFileError(place, problem, FOLDER_WAYS_OUT) from None
    return model


def _folders_own(place: str) -> PretrainedConfig:
    import transformers

    found: PretrainedConfig = transformers.AutoConfig.from_pretrained(
        place, trust_remote_code=False, local_files_only=True
    )
    return found


_DROPOUT = re.compile(r"(\w+_)?(dropout|pdrop|dropout_prob)")


def _dropouts(config: ModelConfig) -> dict[str, float]:
    """The requested dropout, by the names that the family uses; empty if none was requested."""
    if config.dropout is None:
        return {}
    if not config.is_folder:
        return dict.fromkeys(FAMILIES[config.family].dropout_fields, config.dropout)
    known = vars(_folders_own(os.path.expanduser(config.path or "")))
    return {name: config.dropout for name in known if _DROPOUT.fullmatch(name)}


def _pretrained(config: ModelConfig, named: Mapping[str, Any], **options: Any) -> PreTrainedModel:
    reason = weights_available(config)
    if reason is not None:
        raise ValueError(reason)
    place = os.path.expanduser(config.path or str(config.pretrained))
    remedy = FOLDER_WAYS_OUT if config.is_folder else WAYS_OUT
    if config.is_folder:  # of any family: it may have no cache, and another implementation of attention
        options |= {"use_safetensors": True}
    else:
        options |= {"attn_implementation": ATTENTION, "use_cache": False}
    model: PreTrainedModel
    try:
        model, loaded = _auto_class(config).from_pretrained(
            place,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=is_offline(),
            output_loading_info=True,
            **_dropouts(config),
            **named,
            **options,
        )
    # Covers all errors of transformers for arbitrary settings, for weights that are not tensors (pickled
    # objects, which are never unpickled), and for cut or damaged files.
    except Exception as error:
        raise UnusableFileError(
            place, f"has weights that cannot be loaded ({in_a_line(error)})", remedy
        ) from None
    missing = _needed(config, model, loaded["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UnusableFileError(place, f"has weights without {missing[0]}{more}", remedy)
    return _uncached(model)


def _uncached(model: PreTrainedModel) -> PreTrainedModel:
    """Disables the cache of keys and values, which training does not need."""
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model


def _needed(config: ModelConfig, model: PreTrainedModel, missing: Iterable[str]) -> list[str]:
    """The missing parameters that may not be initialized anew: all of them, or all but the head's if the
    weights were trained for another objective."""
    if config.is_folder and kind_of(config.architecture) == config.objective:
        return sorted(missing)
    body = f"{model.base_model_prefix}."
    return sorted(name for name in missing if name.startswith(body) and ".pooler." not in name)


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path | str) -> None:
    """Writes weights (safetensors), config and tokenizer, if there is one, to `folder`, replacing what was
    there.

    The tokenizer's special tokens are copied to the config, so that generated text ends where it should. All
    files are written next to `folder` first and renamed at the end: a reader, or a restart after a crash,
    finds the complete new folder, the complete old one, or none, but never a partial one. Only one process
    may call this. Raises UnwritableFileError.
    """
    if tokenizer is not None:
        _adopt_special_tokens(model, tokenizer)
    folder = Path(folder)
    with writing(folder), _temporary_folder(folder) as temporary:
        fresh, old = Path(temporary, "new"), Path(temporary, "old")
        model.save_pretrained(fresh)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
        as_new_files(*(path for path in fresh.iterdir() if path.is_file()))
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)


def _temporary_folder(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder next to the target for the new files. The old ones are moved there as well and
    removed with it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent)


def _adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Copies the tokenizer's special tokens to the config, unless the config has several end-of-sequence
    tokens, which published chat models set deliberately."""
    for config in (model.config, getattr(model, "generation_config", None)):
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            theirs = getattr(tokenizer, name)
            if config is not None and theirs is not None and not isinstance(getattr(config, name), list):
                setattr(config, name, theirs)
