"""`attach` and `shard_hooks` on ranks that share a device, on pool workers; the CPU stands for the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attach_jobs import run_steps, said, weights, wrapped
from shard_jobs import sharded

import gradwire
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.library import calls, options


def trained(rank: int, size: int, given: dict[str, Any]) -> tuple[bytes, int, Any]:
    """Weights after four steps, the bytes sent, and what is said of captured rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_check_shared", lambda device, group: None)
        if given.get("share_device"):
            patch.setattr(calls, "make_captured_rounds", _never_launched)
        model = wrapped()
        with gradwire.attach(model, **given) as synchronizer:
            run_steps(model, range(4), rank)
            return weights(model), synchronizer.bytes_sent, synchronizer.captured


def _never_launched(graphs: str, device: torch.device) -> CapturedRounds:
    def make() -> Any:
        raise AssertionError("a round of ranks that share a device is captured")

    return CapturedRounds(make, device, required=False)


def refusals(rank: int, size: int) -> list[str]:
    """The errors for models and arguments with which no device can be shared."""
    model, shards = wrapped(), sharded()
    found = [
        said(gradwire.attach, model, share_device=True),
        said(gradwire.shard_hooks, shards, codec="fp32", share_device=True),
        said(gradwire.attach, model, share_device="yes"),
        said(gradwire.attach, model, codec="fp32", graphs="always"),
        said(gradwire.shard_hooks, shards, codec="fp32", graphs="always"),
        said(gradwire.shard_hooks, shards, codec="fp32", graphs="sometimes"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_check_shared", lambda device, group: None)
        found += [
            said(gradwire.attach, model, codec="fp32", share_device=True, graphs="always"),
            said(gradwire.attach, model, share_device=rank == 0),
        ]
    return found
