"""`share_device` of `gradwire.attach` and `gradwire.shard_hooks`: training, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import attach_shared_jobs as jobs
import pytest
import torch
from pool import Workers

from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE
from gradwire.harness.library import options


@pytest.mark.parametrize("codec", ["dynamiq", "powersgd"])
def test_training_is_that_of_ranks_with_devices_of_their_own(codec: str, workers: Workers) -> None:
    """Weights and bytes; and no round is captured, for the reason that is given."""
    alone = workers(2)(jobs.trained, {"codec": codec})
    for own, other in zip(
        workers(2)(jobs.trained, {"codec": codec, "share_device": True}), alone, strict=True
    ):
        assert own[:2] == other[:2] and other[2] is None
        assert own[2].captured == 0 and own[2].refused == {REFUSES_CAPTURE: own[2].buckets}


REFUSALS = (
    "share_device=True: ranks share GPUs, and the model is on cpu; leave it out",
    "share_device=True: ranks share GPUs, and the model is on cpu; leave it out",
    "share_device='yes': ",
    "graphs='always': CUDA graphs need ranks on GPUs, and these are on cpu; use graphs='auto'",
    "graphs='always': CUDA graphs need ranks on GPUs, and these are on cpu; use graphs='auto'",
    "graphs='sometimes': choose one of auto, always, never",
    f"graphs='always': {REFUSES_CAPTURE}; use graphs='auto'",
    "ranks disagree: rank 0 has share_device=True, rank 1 has share_device=False",
)


def test_what_cannot_be_shared_is_refused_in_one_line(workers: Workers) -> None:
    for said in workers(2)(jobs.refusals):
        for text, expected in zip(said, REFUSALS, strict=True):
            assert text.startswith("ValueError: ") and expected in text, text
            assert "\n" not in text and len(text) < 320, text


class Group:
    """A process group over this backend."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def name(self) -> str:
        return self._backend


def test_a_process_group_that_cannot_serve_them_is_refused() -> None:
    gpu: Any = torch.device("cuda", 0)
    options._check_shared(gpu, Group("gloo"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape('use init_process_group("gloo"), or leave it out')):
        options._check_shared(gpu, Group("nccl"))  # type: ignore[arg-type]
