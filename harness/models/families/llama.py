"""Llama 3: rotary positions, RMS norm, SwiGLU, grouped-query attention."""

from __future__ import annotations

from typing import Any

from gradwire.harness.models.registry import Family
from gradwire.harness.models.settings import ModelConfig, head_dim

ROPE_THETA = 500000.0
ORIGINAL_CONTEXT = 8192
"""Llama 3's own context, in tokens; 3.2 reaches 131072 by stretching the rotary frequencies."""


def _extras(config: ModelConfig) -> dict[str, Any]:
    """The constants of Llama 3.2's published config.json."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": ROPE_THETA}
    if config.context > ORIGINAL_CONTEXT:
        rope |= {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
        }
    return {
        "head_dim": head_dim(config),
        "rms_norm_eps": 1e-5,
        "rope_parameters": rope,
    }


FAMILY = Family(
    config_class="LlamaConfig",
    objectives=("causal",),
    fields={
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "intermediate_size": "intermediate_size",
        "context": "max_position_embeddings",
        "tie_embeddings": "tie_word_embeddings",
    },
    dropout_fields=("attention_dropout",),
    grouped_heads=True,
    own_head_dim=True,
    extras=_extras,
)
