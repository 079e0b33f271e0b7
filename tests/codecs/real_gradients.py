"""Gradients of a tiny GPT-2 that trains on Python's language reference (part of the embedded corpus)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

CONTEXT = 64


def gpt2_gradients(workers: int, steps: int, micro_batch: int = 2) -> Iterator[list[Tensor]]:
    """Every worker's gradient, (120576,) float32, in each of `steps` steps of training on their mean.

    Tokens are bytes; each worker has batches of its own.
    """
    from pydoc_data.topics import topics

    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2, **special)
    model = GPT2LMHeadModel(config).eval()
    text = "".join(topics[name] for name in sorted(topics)).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        own = [_gradient(model, tokens, micro_batch, generator) for _ in range(workers)]
        yield own
        nn.utils.vector_to_parameters(torch.stack(own).mean(dim=0), _grads(model))
        optimizer.step()


def _grads(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _gradient(model: nn.Module, tokens: Tensor, micro_batch: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(tokens) - CONTEXT, (micro_batch,), generator=generator)
    batch = torch.stack([tokens[int(start) : int(start) + CONTEXT] for start in starts])
    logits = model(input_ids=batch[:, :-1]).logits
    model.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
    return torch.cat([grad.flatten() for grad in _grads(model)])
