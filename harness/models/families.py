"""The families of models for text, which map this project's fields to those of transformers. A new family is
an entry of `FAMILIES`; `vision.py` has those for images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.harness.models.settings import ModelConfig


HEADS: Mapping[str, str] = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "choice": "AutoModelForCausalLM",
    "classification": "AutoModelForSequenceClassification",
    "image_classification": "AutoModelForImageClassification",
}
"""The class of transformers that adds the head for an objective; everything else about objectives is in
`harness/objectives`."""

AUTO = "auto"
"""The objective that a model's weights were trained for, or a family's usual one."""

FOLDER = "folder"
"""The placeholder family of `model=folder` until its folder has been read."""


@dataclass(frozen=True)
class Family:
    """The mapping from a `ModelConfig` to the config of one family of transformers."""

    config_class: str
    """Name of the config class in transformers. It is not imported here: importing transformers takes
    seconds."""
    model_type: str
    """The value of `model_type` in a folder's config.json."""
    objectives: tuple[str, ...]
    """Entries of `HEADS`."""
    fields: Mapping[str, str]
    """For every field that shapes the weights, the corresponding field in transformers."""
    dropout_fields: tuple[str, ...]
    grouped_heads: bool = False
    """True if `num_kv_heads` may differ from `num_heads`."""
    own_head_dim: bool = False
    """True if `head_dim` may differ from `hidden_size / num_heads`."""
    extras: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    """Settings that depend on the config as a whole, not on one field."""


USUAL_FIELDS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "context": "max_position_embeddings",
    "tie_embeddings": "tie_word_embeddings",
}

LLAMA_ROPE_THETA = 500000.0
LLAMA_CONTEXT = 8192
"""Llama 3's own context, in tokens; 3.2 reaches 131072 by scaling the rotary frequencies."""

GEMMA_GLOBAL_ROPE_THETA, GEMMA_LOCAL_ROPE_THETA = 1_000_000.0, 10_000.0
GEMMA_WINDOW = 512
"""Number of tokens that a local layer attends to. In a smaller context local layers attend to everything."""
GEMMA_PATTERN = 6
"""Every sixth layer is global and the five before it are local, so a model with fewer layers has only local
ones."""


def _llama_extras(config: ModelConfig) -> dict[str, Any]:
    """The constants of Llama 3.2's published config.json."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": LLAMA_ROPE_THETA}
    if config.context > LLAMA_CONTEXT:
        rope |= {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": LLAMA_CONTEXT,
        }
    return {"head_dim": _head_dim(config), "rms_norm_eps": 1e-5, "rope_parameters": rope}


def _gemma_extras(config: ModelConfig) -> dict[str, Any]:
    """The constants of google/gemma-3-1b-pt's published config.json."""
    layers = range(1, config.num_layers + 1)
    return {
        "head_dim": _head_dim(config),
        "query_pre_attn_scalar": _head_dim(config),
        "rms_norm_eps": 1e-6,
        "sliding_window": GEMMA_WINDOW,
        "layer_types": [f"{'sliding' if layer % GEMMA_PATTERN else 'full'}_attention" for layer in layers],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": GEMMA_GLOBAL_ROPE_THETA},
            "sliding_attention": {"rope_type": "default", "rope_theta": GEMMA_LOCAL_ROPE_THETA},
        },
    }


def _head_dim(config: ModelConfig) -> int:
    """Channels of one attention head."""
    return config.head_dim or config.hidden_size // config.num_heads


def _with_grouped_heads(
    config_class: str, model_type: str, extras: Callable[[ModelConfig], dict[str, Any]]
) -> Family:
    """A decoder with rotary positions, which supports fewer key/value heads and a custom head dimension."""
    fields = {**USUAL_FIELDS, "num_kv_heads": "num_key_value_heads"}
    objectives, dropouts = ("causal", "choice"), ("attention_dropout",)
    return Family(config_class, model_type, objectives, fields, dropouts, True, True, extras)


FAMILIES: Mapping[str, Family] = {
    # Bidirectional, trained to restore masked tokens.
    "bert": Family(
        config_class="BertConfig",
        model_type="bert",
        objectives=("masked", "classification"),
        fields=USUAL_FIELDS,
        dropout_fields=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    ),
    # Gemma 3's text model: local and global attention layers, normalized queries and keys.
    "gemma": _with_grouped_heads("Gemma3TextConfig", "gemma3_text", _gemma_extras),
    # Learned positions, layer norm, GELU.
    "gpt2": Family(
        config_class="GPT2Config",
        model_type="gpt2",
        objectives=("causal", "choice"),
        fields={
            "num_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_heads": "n_head",
            "intermediate_size": "n_inner",
            "context": "n_positions",
            "tie_embeddings": "tie_word_embeddings",
        },
        dropout_fields=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    ),
    # Llama 3: RMS norm, SwiGLU, grouped-query attention.
    "llama": _with_grouped_heads("LlamaConfig", "llama", _llama_extras),
}
