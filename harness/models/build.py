"""Builds a model from its weights or from a seed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.models.families import FAMILIES, HEADS
from gradwire.harness.models.foreign import in_a_line
from gradwire.harness.models.settings import END_ID, PAD_ID, ModelConfig, check
from gradwire.harness.models.vision import VISION, missing_package
from gradwire.harness.models.weights import WAYS_OUT, is_offline, weights_available
from gradwire.harness.runtime.seeding import derive_seed

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ATTENTION = "sdpa"
"""PyTorch's fused attention. It gives the same bits every time: on CPUs for a given number of threads, on
GPUs under `torch.use_deterministic_algorithms`. Its memory grows with the sequence length, not with its
square as eager attention's does."""


def build_model(
    config: ModelConfig, vocab_size: int | None = None, *, seed: int, labels: Sequence[str] = ()
) -> PreTrainedModel:
    """Returns the model in float32 on the CPU, in training mode, with the head for its objective.

    With `weights=random` its parameters are a pure function of (config, vocab_size, seed), and the caller's
    random state is unchanged; `vocab_size` defaults to `config.vocab_size`. With `weights=pretrained` the
    weights decide its shape: `vocab_size` is not used, and a warning names the fields of `config` that
    differ; a head that the weights lack is a pure function of the seed. `labels` are those that a
    classification tells apart; models for images have as many outputs. No code from the hub is run.

    Raises ValueError if a field of `config` cannot work or the weights cannot be had.
    """
    check(config)
    named = _named(labels) if config.objective == "classification" else {}
    with _seeded(derive_seed(seed, "model")):
        if config.family in VISION:
            model = _for_images(config, labels)
        elif config.weights == "pretrained":
            model = _pretrained(config, named)
        else:
            described = transformers_config(config, vocab_size or config.vocab_size)
            described.update(named)
            model = _auto_class(config).from_config(
                described, attn_implementation=ATTENTION, dtype=torch.float32
            )
    model.train()
    return model


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
    """How transformers wants to be told the labels; without any it has two of its own."""
    by_index = dict(enumerate(labels or ("LABEL_0", "LABEL_1")))
    return {"id2label": by_index, "label2id": {name: index for index, name in by_index.items()}}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of the CPU follow from `seed` in this block, and from what they were before after it.

    Only the CPU's generator is touched: torch.manual_seed would reseed the GPUs' as well.
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


def _pretrained(config: ModelConfig, named: Mapping[str, Any]) -> PreTrainedModel:
    reason = weights_available(config)
    if reason is not None:
        raise ValueError(reason)
    place = os.path.expanduser(config.path or config.pretrained)
    try:
        model: PreTrainedModel = _auto_class(config).from_pretrained(
            place,
            attn_implementation=ATTENTION,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=is_offline(),
            use_cache=False,
            **dict.fromkeys(FAMILIES[config.family].dropout_fields, config.dropout),
            **named,
        )
    # Whatever transformers makes of settings that anybody may have written, and of weights that are no
    # tensors, such as pickled objects, which are never unpickled, or of cut or damaged files.
    except Exception as error:
        raise UnusableFileError(
            place, f"has weights that cannot be loaded ({in_a_line(error)})", WAYS_OUT
        ) from None
    _warn_of_differences(config, model.config)
    return model


def _warn_of_differences(config: ModelConfig, loaded: PretrainedConfig) -> None:
    """Warns about settings that take no effect because the weights decide the shape."""
    different = [
        f"model.{ours}={getattr(config, ours)} (weights: {getattr(loaded, theirs)})"
        for ours, theirs in FAMILIES[config.family].fields.items()
        if getattr(loaded, theirs, None) not in (None, getattr(config, ours))
    ]
    if different:
        source = config.path or config.pretrained
        warnings.warn(f"the pretrained weights of {source} decide over {', '.join(different)}", stacklevel=3)
