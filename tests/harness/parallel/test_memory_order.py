"""Buckets in memory and in the order of shapes: views, the reverse, and whole runs of permuted models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from permuted_jobs import train_permuted_virtually, train_rank_of_permuted
from pool import Workers
from recorded import outcome
from torch import Tensor, nn
from training_jobs import tiny_run, train_all_virtually

from gradwire.harness.parallel.buckets import BucketLayouts, permuted_strides
from gradwire.harness.record.gradients import read_gradients

IMAGE = torch.zeros(4, 3, 2, 2)


@pytest.mark.parametrize(
    ("parameter", "strides"),
    [
        (torch.zeros(3, 4), None),
        (torch.zeros(()), None),
        (torch.zeros(4, 3).t(), (1, 3)),
        (torch.zeros(1, 3).t(), None),  # one row: in either order the same
        (IMAGE, None),
        (IMAGE.to(memory_format=torch.channels_last), (12, 1, 6, 3)),
        (torch.zeros(2, 5, 3).permute(1, 2, 0), (3, 1, 15)),
        (torch.zeros(3, 8).t()[::2], None),  # with gaps
        (torch.zeros(3).expand(4, 3), None),  # overlapping
        (torch.zeros(0, 3).t(), None),
    ],
)
def test_permuted_parameters_are_recognized(parameter: Tensor, strides: tuple[int, ...] | None) -> None:
    assert permuted_strides(parameter) == strides


def test_buckets_are_put_into_the_order_of_shapes_and_back() -> None:
    model = nn.Module()
    model.plain = nn.Parameter(torch.zeros(2, 3))
    model.turned = nn.Parameter(torch.zeros(4, 2).t())
    model.image = nn.Parameter(IMAGE.to(memory_format=torch.channels_last))
    layouts = BucketLayouts(model, lambda layout: None)
    names = ("turned", "image", "plain")
    order = layouts.in_memory(layouts.named(names, torch.float32, torch.device("cpu")))
    wanted = {name: torch.randn(getattr(model, name).shape) for name in names}
    flat = torch.empty(order.layout.numel)
    for name, place in order.views(flat):
        place.copy_(wanted[name])
    lying = torch.cat([wanted["turned"].t().flatten(), wanted["image"].permute(0, 2, 3, 1).flatten()])
    assert torch.equal(flat, torch.cat([lying, wanted["plain"].flatten()]))
    logical = order.logical(flat)
    assert torch.equal(logical, torch.cat([wanted[name].flatten() for name in names]))
    assert torch.equal(order.in_memory(logical), flat)
    alone = layouts.in_memory(layouts.named(("plain",), torch.float32, torch.device("cpu")))
    assert alone.logical(flat[-6:]).data_ptr() == flat[-6:].data_ptr(), "nothing to permute, nothing copied"


def test_runs_of_permuted_models_are_those_of_contiguous_ones(tmp_path: Path, workers: Workers) -> None:
    """Up to the rounding of products with transposed weights; and in both worlds bit for bit."""
    settings = (
        "cluster.workers=2",
        "codec=powersgd",
        "model.dropout=0",
        "measure.save_gradients_at=[1]",
        "train.steps=2",
    )
    virtual = tiny_run(*settings, "cluster=virtual")
    train_all_virtually(virtual, str(tmp_path / "plain"))
    train_permuted_virtually(virtual, tmp_path / "virtual")
    workers(2)(train_rank_of_permuted, tiny_run(*settings), str(tmp_path / "real"))
    assert outcome(tmp_path / "real") == outcome(tmp_path / "virtual")
    plain, found = (outcome(tmp_path / name) for name in ("plain", "virtual"))
    assert found["layout_hash"] == plain["layout_hash"]
    assert found["vnmse_mean"] == pytest.approx(plain["vnmse_mean"], rel=1e-3)
    for row, expected in zip(found["steps.jsonl"], plain["steps.jsonl"], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    saved = [
        read_gradients(tmp_path / name / "gradients" / "step1.safetensors")
        for name in ("plain", "virtual", "real")
    ]
    assert saved[0].buckets == saved[1].buckets
    assert torch.allclose(saved[0].values, saved[1].values, rtol=1e-3, atol=1e-6)
    assert torch.equal(saved[1].values, saved[2].values)
