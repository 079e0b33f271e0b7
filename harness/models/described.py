"""The model that a Hugging Face folder's config.json describes, read as plain JSON: neither torch nor
transformers is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.files.structured import read_json
from gradwire.harness.models.foreign import check_settings

Kind = Literal["causal", "masked", "classification"]

ENDINGS: Mapping[str, Kind] = {
    "LMHeadModel": "causal",
    "ForCausalLM": "causal",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForSequenceClassification": "classification",
}
"""The purpose of a model's head, by the ending of its architecture's name."""

OF_KIND: Mapping[Kind, tuple[str, ...]] = {
    "causal": ("causal", "choice"),
    "masked": ("masked", "classification"),
    "classification": ("classification",),
}
"""The objectives that a model with such a head can be trained with, its own first. A masked model gets a new
head to become a classifier."""

LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len", "seq_length", "context_length")
"""Keys of the context length in models' settings."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "num_layers": (
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        *("decoder_layers", "encoder_layers"),
    ),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "n_embed", "emb_dim"),
    "num_heads": (
        *("num_attention_heads", "n_head", "n_heads", "num_heads"),
        *("decoder_attention_heads", "encoder_attention_heads"),
    ),
    "vocab_size": ("vocab_size", "n_words"),
}
"""This project's names of the sizes that every model has, and the keys that the families of transformers use
for them."""

KV_HEADS = ("num_key_value_heads", "num_kv_heads")
INNER = (
    *("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "ffn_hidden_size"),
    *("decoder_ffn_dim", "d_inner", "dff"),
)

AFTER_PADDING = (
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "xmod"),
    *("data2vec-text", "ibert", "longformer", "mpnet"),
)
"""Models that number positions from the padding token's id + 1 on, so that lower positions are not usable."""

OF_IMAGES = ("vision_config", "image_size", "num_channels", "image_token_id")
"""Keys that models for images have."""


@dataclass(frozen=True)
class Described:
    """The model in a folder. Sizes are named as in `ModelConfig`."""

    model_type: str | None
    architecture: str | None
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int | None
    intermediate_size: int
    vocab_size: int
    context: int | None
    """None if config.json gives no length."""
    tie_embeddings: bool
    num_labels: int
    """The number of classes, if the head is a classifier's."""

    @property
    def kind(self) -> Kind | None:
        """None if the architecture is unknown."""
        return kind_of(self.architecture)

    def shape(self) -> dict[str, Any]:
        """The fields of `ModelConfig` that the weights determine."""
        names = (*NEEDED, "num_kv_heads", "head_dim", "intermediate_size", "tie_embeddings", "architecture")
        context = {} if self.context is None else {"context": self.context}
        return {name: getattr(self, name) for name in names} | context


def kind_of(architecture: str | None) -> Kind | None:
    """The purpose of the head of one of transformers' architectures."""
    ends = (kind for ending, kind in ENDINGS.items() if (architecture or "").endswith(ending))
    return next(ends, None)


def architecture_of(settings: Mapping[str, Any]) -> str | None:
    """The first class named in a config.json."""
    named = settings.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def context_of(settings: Mapping[str, Any]) -> int | None:
    """Tokens of the longest sequence; None if a config.json does not say."""
    found = _with_text(settings)
    context = _first(found, LENGTHS)
    if context is not None and found.get("model_type") in AFTER_PADDING:
        padding = found.get("pad_token_id", 1)
        context -= 1 + (padding if isinstance(padding, int) else 1)
    return context


def describe(path: Path, *, remedy: str) -> Described:
    """Reads the config.json at `path`; raises UnusableFileError for missing or impossible values."""
    settings = read_json(path, remedy=remedy)
    check_settings(settings, path, remedy=remedy)
    found = _with_text(settings)
    sizes = {ours: _first(found, theirs) for ours, theirs in NEEDED.items()}
    architecture = architecture_of(settings)
    if any(key in settings for key in OF_IMAGES) and not kind_of(architecture):
        named = printable(architecture or "that of a model for images", 60)
        problem = f"is of a model for images ({named}); those that train here are model=resnet50 and its kind"
        raise UnusableFileError(path, problem, remedy)
    for ours, theirs in NEEDED.items():
        if sizes[ours] is None and (ours != "num_heads" or architecture is None):
            raise UnusableFileError(path, f"has no {theirs[0]}, or {' or '.join(theirs[1:3])}", remedy)
    hidden, heads = sizes["hidden_size"] or 1, sizes["num_heads"] or 1
    kv_heads, head_dim = _first(found, KV_HEADS) or heads, _first(found, ("head_dim", "d_kv"))
    named = next((key for key in NEEDED["num_heads"] if key in found), "heads")
    if head_dim is None and hidden % heads:
        problem = f"has {named}={heads}, which does not divide {_key(found, 'hidden_size')}={hidden}"
        raise UnusableFileError(path, problem, remedy)
    if heads % kv_heads:
        problem = f"has {_name(found, KV_HEADS)}={kv_heads}, which does not divide {named}={heads}"
        raise UnusableFileError(path, problem, remedy)
    model_type, tied = settings.get("model_type"), found.get("tie_word_embeddings")
    return Described(
        model_type=model_type if isinstance(model_type, str) else None,
        architecture=architecture,
        num_layers=sizes["num_layers"] or 1,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=None if head_dim == hidden // heads else head_dim,
        intermediate_size=_first(found, INNER) or 4 * hidden,
        vocab_size=sizes["vocab_size"] or 1,
        context=context_of(settings),
        tie_embeddings=tied if isinstance(tied, bool) else True,
        num_labels=_num_labels(settings),
    )


def _num_labels(settings: Mapping[str, Any]) -> int:
    """The number of labels; transformers' default of two if config.json does not say."""
    names, number = settings.get("id2label"), settings.get("num_labels")
    if isinstance(names, Mapping):
        return len(names)
    return number if isinstance(number, int) else 2


def _with_text(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings, updated with those of the text part of a multimodal model."""
    of_text = settings.get("text_config")
    return {**settings, **(of_text if isinstance(of_text, Mapping) else {})}


def _first(found: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of the sizes `names` that exists; if it is a list with one entry per layer, the largest."""
    for name in names:
        value = found.get(name)
        sizes = value if isinstance(value, list) and value else [value]
        if all(type(size) is int and size > 0 for size in sizes):
            return int(max(sizes))
    return None


def _name(found: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if _first(found, (name,)) is not None), names[0])


def _key(found: Mapping[str, Any], ours: str) -> str:
    return _name(found, NEEDED[ours])
