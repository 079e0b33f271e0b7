"""Training runs of models whose matrices lie in memory column after column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from training_jobs import train_all_virtually, train_rank

from gradwire.harness.trainer import parts
from gradwire.harness.trainer.settings import RunConfig


@contextmanager
def _matrices_transposed_in_memory() -> Iterator[None]:
    build_model = parts.build_model

    def build(*given: Any, **options: Any) -> nn.Module:
        model = build_model(*given, **options)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and ".h." in name:  # transformers cannot save tied weights like that
                parameter.data = parameter.data.t().contiguous().t()
        return model

    parts.build_model = build
    try:
        yield
    finally:
        parts.build_model = build_model


def train_rank_of_permuted(rank: int, size: int, config: RunConfig, directory: str) -> bool:
    with _matrices_transposed_in_memory():
        return train_rank(rank, size, config, directory)


def train_permuted_virtually(config: RunConfig, directory: Path) -> None:
    with _matrices_transposed_in_memory():
        train_all_virtually(config, str(directory))
