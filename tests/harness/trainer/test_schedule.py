"""Length and learning rate: torch's schedulers are the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.harness.objectives.interface import perplexity
from gradwire.harness.timing.measure.step_figures import wire_bits
from gradwire.harness.trainer.schedule import TrainingSchedule, num_steps
from gradwire.harness.trainer.settings import TrainConfig


def rate_of(step: int, schedule_steps: int, decay_steps: int = 1, **settings: Any) -> float:
    """The rate of a step with these settings of `train`."""
    train = TrainConfig(**settings)
    return TrainingSchedule(train, 1, None, schedule_steps, decay_steps).rate(step)


@pytest.mark.parametrize(("end_factor", "schedule_steps"), [(1 / 8, 20), (1 / 16, 7), (1.0, 5)])
def test_without_warm_up_it_is_torchs_linear_lr(end_factor: float, schedule_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    reference = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end_factor, schedule_steps)
    for step in range(30):
        ours = rate_of(step, schedule_steps, lr=0.3, end_factor=end_factor)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(("end_factor", "schedule_steps"), [(0.1, 20), (1 / 15, 7), (1.0, 5)])
def test_a_cosine_is_torchs_cosine_annealing(end_factor: float, schedule_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule_steps, 0.3 * end_factor)
    settings: dict[str, Any] = {"lr": 0.3, "end_factor": end_factor, "schedule": "cosine"}
    for step in range(schedule_steps + 1):
        ours = rate_of(step, schedule_steps, **settings)
        shifted = rate_of(step + 4, schedule_steps + 4, warmup_steps=4, **settings)
        assert ours == shifted == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        reference.step()
    after = rate_of(1000, schedule_steps, **settings)
    assert after == pytest.approx(0.3 * end_factor)


@pytest.mark.parametrize(("decay_steps", "decay_factor"), [(7, 0.1), (1, 0.9)])
def test_steps_are_torchs_step_lr(decay_steps: int, decay_factor: float) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    reference = torch.optim.lr_scheduler.StepLR(optimizer, decay_steps, decay_factor)
    settings: dict[str, Any] = {"lr": 0.3, "end_factor": 0.5, "schedule_steps": 9, "schedule": "steps"}
    settings |= {"decay_steps": decay_steps, "decay_factor": decay_factor}
    for step in range(30):
        ours = rate_of(step, **settings)
        shifted = rate_of(step + 4, warmup_steps=4, **settings)
        assert ours == shifted == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        reference.step()


def test_warm_up_climbs_to_the_rate_and_the_end_is_reached() -> None:
    rates = [rate_of(step, 14, lr=2.0, warmup_steps=4, end_factor=0.1) for step in range(20)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert all(a >= b for a, b in zip(rates[3:], rates[4:], strict=False))
    assert rates[14:] == pytest.approx([0.2] * 6)


def test_steps_from_epochs() -> None:
    assert num_steps(7, 3.0, 1000, 8) == 7
    assert num_steps(None, 3.0, 1000, 8) == 375
    assert num_steps(None, 0.5, 10, 100) == 1


def test_perplexity_of_a_hopeless_loss_is_infinite() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(1e9) == float("inf")


def test_wire_bits_of_an_all_reduce() -> None:
    """bf16 between n ranks: 2(n − 1) gradients of two bytes a coordinate."""
    for size in (2, 3, 8):
        assert wire_bits(2 * (size - 1) * 1000 * 2, 2 * (size - 1), 1000) == 16
    assert wire_bits(0, 6, 1000) is None
    assert wire_bits(0, 0, 1000) is None
