"""A plain training loop: DistributedDataParallel, AdamW and clipping, with nothing recorded."""

from __future__ import annotations

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.harness.data.packing import TokenData


class BareLoop:
    """Trains `model` as the trainer does with `codec=backend`: same batches and optimizer, DDP's
    all-reduce."""

    def __init__(
        self, config: DictConfig, model: nn.Module, data: TokenData, rank: int, device: torch.device
    ) -> None:
        train = config.train
        self._model = DistributedDataParallel(
            model.to(device),
            bucket_cap_mb=config.parallel.bucket_cap_mb,
            static_graph=config.parallel.static_graph,
            find_unused_parameters=config.parallel.find_unused_parameters,
            gradient_as_bucket_view=config.parallel.gradient_as_bucket_view,
        )
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in self._parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
            {"params": [p for p in self._parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=train.lr, fused=True)
        self._clip = float("inf") if train.clip_norm is None else train.clip_norm
        self._data, self._micro_batch, self._device = data, train.micro_batch, device
        self._generator = torch.Generator().manual_seed(rank)

    def run(self, steps: int) -> float:
        """Takes so many optimizer steps; returns the last loss."""
        loss = torch.zeros(())
        for _ in range(steps):
            input_ids = self._batch()
            loss = self._model(input_ids=input_ids, labels=input_ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _batch(self) -> Tensor:
        rows = torch.randint(len(self._data.train), (self._micro_batch,), generator=self._generator)
        return self._data.train[rows].to(self._device, torch.int64)
