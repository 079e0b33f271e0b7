"""BERT: bidirectional, trained to restore masked tokens."""

from __future__ import annotations

from gradwire.harness.models.registry import Family

FAMILY = Family(
    config_class="BertConfig",
    objectives=("masked",),
    fields={
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "context": "max_position_embeddings",
        "tie_embeddings": "tie_word_embeddings",
    },
    dropout_fields=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    grouped_heads=False,
    own_head_dim=False,
    extras=lambda config: {},
)
