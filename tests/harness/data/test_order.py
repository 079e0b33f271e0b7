"""The order of samples: every sample once per epoch, whatever the run's shape."""

from itertools import product

import pytest
import torch

from gradwire.harness.data.token_data import SampleOrder


def _walk(num_samples, seed, steps, world_size, micro_batch, accumulation):
    """All indices of `steps` steps in the order of steps, micro-steps and ranks."""
    places = product(range(steps), range(accumulation), range(world_size))
    order = SampleOrder(num_samples, seed, world_size, micro_batch, accumulation)
    return torch.cat([order.indices(*place) for place in places])


@pytest.mark.parametrize(
    ("num_samples", "world_size", "micro_batch", "accumulation"),
    [(1, 1, 1, 1), (12, 2, 3, 2), (7, 2, 3, 2), (5, 4, 4, 2), (23, 3, 1, 1), (64, 4, 2, 1)],
)
def test_each_epoch_uses_every_sample_once(num_samples, world_size, micro_batch, accumulation):
    per_step = world_size * micro_batch * accumulation
    steps = -(-4 * num_samples // per_step)
    taken = _walk(num_samples, 3, steps, world_size, micro_batch, accumulation)
    assert taken.dtype == torch.int64 and len(taken) == steps * per_step
    epochs = taken[: 4 * num_samples].reshape(4, num_samples)
    assert torch.equal(epochs.sort(dim=1).values, torch.arange(num_samples).expand(4, -1))


def test_epochs_and_seeds_are_shuffled_differently():
    orders = [_walk(50, seed, 10, 1, 10, 1).reshape(2, 50) for seed in (0, 1)]
    rows = [*orders[0], *orders[1], torch.arange(50)]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])


def test_a_step_takes_the_same_samples_however_it_is_divided():
    whole = _walk(23, 0, 6, 1, 12, 1)
    for world_size, micro_batch, accumulation in [(4, 3, 1), (2, 2, 3), (1, 4, 3), (12, 1, 1)]:
        assert torch.equal(_walk(23, 0, 6, world_size, micro_batch, accumulation), whole)


def test_any_step_can_be_asked_for_alone():
    order = SampleOrder(100, 9, world_size=3, micro_batch=2, accumulation=2)
    late = order.indices(10**6, 1, 2)
    order.indices(0, 0, 0)
    assert torch.equal(order.indices(10**6, 1, 2), late)
