"""GPT-2: learned positions, layer norm, GELU."""

from __future__ import annotations

from gradwire.harness.models.registry import Family

FAMILY = Family(
    config_class="GPT2Config",
    objectives=("causal",),
    fields={
        "num_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_heads": "n_head",
        "intermediate_size": "n_inner",
        "context": "n_positions",
        "tie_embeddings": "tie_word_embeddings",
    },
    dropout_fields=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    grouped_heads=False,
    own_head_dim=False,
    extras=lambda config: {},
)
