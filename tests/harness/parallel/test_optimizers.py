"""The optimizers are torch's own, their state resumes bit for bit, and no other one's is taken."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradwire.harness.parallel.update import OptimizerSettings, Updater, optimizer_of

ADAMW = OptimizerSettings(weight_decay=0.1, beta1=0.8, beta2=0.9, adam_epsilon=1e-6, clip_norm=None)
SETTINGS = {
    "adamw": ADAMW,
    "adam": replace(ADAMW, name="adam"),
    "sgd": replace(ADAMW, name="sgd", momentum=0.7),
    "sgd without momentum": replace(ADAMW, name="sgd", momentum=0.0),
}


def reference(chosen: str, model: nn.Linear) -> torch.optim.Optimizer:
    """The optimizer as torch's documentation has it: the matrix decays, the bias does not."""
    groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias], "weight_decay": 0.0}]
    adam = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "foreach": False}
    if chosen == "adamw":
        return torch.optim.AdamW(groups, **adam)
    if chosen == "adam":
        return torch.optim.Adam(groups, **adam)
    return torch.optim.SGD(groups, lr=0.05, momentum=SETTINGS[chosen].momentum, foreach=False)


def set_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("chosen", SETTINGS)
def test_steps_are_torchs_and_resume_bit_for_bit(chosen: str) -> None:
    """A warm-up leaves no trace, either."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    expected, resumed = copy.deepcopy(model), copy.deepcopy(model)
    updater, optimizer = Updater(model, SETTINGS[chosen]), reference(chosen, expected)
    set_gradients(model, 99)
    updater.warm_up()
    for step in range(6):
        if step == 3:
            resumed.load_state_dict(model.state_dict())
            other = Updater(resumed, SETTINGS[chosen])
            other.load_state_dict({key: value.clone() for key, value in updater.state_dict().items()})
        for each in (model, expected, resumed):
            set_gradients(each, step)
        updater.apply(0.05)
        optimizer.step()
        if step >= 3:
            other.apply(0.05)
    for ours, theirs, again in zip(
        model.parameters(), expected.parameters(), resumed.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        assert torch.equal(ours, again)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("chosen", SETTINGS)
def test_a_step_that_is_not_finite_is_as_if_it_had_not_been(chosen: str, value: float, first: bool) -> None:
    """This holds for the first step, too, which has no momenta yet."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    undisturbed = copy.deepcopy(model)
    settings = replace(SETTINGS[chosen], clip_norm=1.0)
    updater, other = Updater(model, settings), Updater(undisturbed, settings)
    for step in range(4):
        if step == (0 if first else 2):
            set_gradients(model, 9)
            assert model.bias.grad is not None
            model.bias.grad[1] = value
            assert not updater.apply(0.05).isfinite()
        for each in (model, undisturbed):
            set_gradients(each, step)
        assert updater.apply(0.05) == other.apply(0.05)
    states = updater.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for ours, theirs in zip(model.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


READING = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__")


def test_an_update_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host would wait there for all that was started before."""
    model = nn.Linear(5, 3)
    updater = Updater(model, replace(ADAMW, clip_norm=1.0))
    set_gradients(model, 0)

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("read from the device")

    for name in READING:
        monkeypatch.setattr(torch.Tensor, name, refuse)
    updater.apply(0.05)


@pytest.mark.parametrize("chosen", SETTINGS)
def test_an_optimizer_of_a_block_knows_what_decays(chosen: str) -> None:
    model = nn.Linear(5, 3)
    optimizer = optimizer_of([model.bias, model.weight], SETTINGS[chosen])
    found = {group["weight_decay"]: group["params"] for group in optimizer.param_groups}
    assert found[0.1][0] is model.weight and found[0.0][0] is model.bias


def test_another_optimizers_state_is_refused() -> None:
    set_gradients(model := nn.Linear(2, 2), 0)
    saved = Updater(model, SETTINGS["sgd"])
    saved.apply(0.1)
    assert set(saved.state_dict()) == {"momentum_buffer/weight", "momentum_buffer/bias"}
    for chosen in ("adamw", "adam", "sgd without momentum"):
        with pytest.raises(
            ValueError, match="another optimizer's: it has momentum_buffer, and train.optimizer"
        ):
            Updater(model, SETTINGS[chosen]).load_state_dict(saved.state_dict())
