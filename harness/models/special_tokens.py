"""The special tokens of the tokenizers trained here; models with random weights are built for them.

The padding token comes first because BERT's embedding row at its `pad_token_id` never learns.
"""

from __future__ import annotations

PAD, END, MASK = "<|pad|>", "<|end|>", "<|mask|>"
SPECIAL_TOKENS = (PAD, END, MASK)
PAD_ID, END_ID, MASK_ID = range(3)
