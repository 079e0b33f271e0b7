"""Gemma 3's text model: local and global attention layers, rotary positions, normalized queries and keys."""

from __future__ import annotations

from typing import Any

from gradwire.harness.models.registry import Family
from gradwire.harness.models.settings import ModelConfig, head_dim

GLOBAL_ROPE_THETA = 1_000_000.0
LOCAL_ROPE_THETA = 10_000.0
WINDOW = 512
"""How many tokens a local layer looks back. In a smaller context local layers see everything."""
PATTERN = 6
"""Every sixth layer is global and the five before it are local, so a model of fewer layers has local ones
only."""


def _extras(config: ModelConfig) -> dict[str, Any]:
    """The constants of google/gemma-3-1b-pt's published config.json."""
    layers = range(1, config.num_layers + 1)
    return {
        "head_dim": head_dim(config),
        "query_pre_attn_scalar": head_dim(config),
        "rms_norm_eps": 1e-6,
        "sliding_window": WINDOW,
        "layer_types": [f"{'sliding' if layer % PATTERN else 'full'}_attention" for layer in layers],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": GLOBAL_ROPE_THETA},
            "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_ROPE_THETA},
        },
    }


FAMILY = Family(
    config_class="Gemma3TextConfig",
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
