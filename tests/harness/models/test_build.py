"""Models with random weights: trainable, tied as configured, and functions of their seed."""

import pytest
import torch
from model_folders import write_config

from gradwire.harness.models.build import build_model

TOKENS = torch.arange(2 * 16).reshape(2, 16) % 290 + 3


def _gradients(model, seed=0):
    model.zero_grad()
    torch.manual_seed(seed)
    loss = model(input_ids=TOKENS, labels=TOKENS).loss
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_a_step_reaches_every_parameter_and_lowers_the_loss(family_name, make_model_config):
    model = build_model(make_model_config(family_name), seed=0)
    assert model.training
    loss, gradients = _gradients(model)
    assert abs(loss.item() - torch.tensor(300.0).log().item()) < 0.5
    assert all(gradient.abs().sum() > 0 for gradient in gradients.values())
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert _gradients(model)[0] < loss


def test_weights_are_a_function_of_the_seed_and_leave_the_random_state_alone(family_name, make_model_config):
    config = make_model_config(family_name)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(config, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = build_model(config, seed=5).state_dict(), build_model(config, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert all(tensor.dtype == torch.float32 for tensor in first.values() if tensor.is_floating_point())


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_as_asked(family_name, make_model_config, tied):
    model = build_model(make_model_config(family_name, tie_embeddings=tied), seed=0)
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied


def test_the_shape_is_the_one_asked_for(family_name, make_model_config):
    model = build_model(make_model_config(family_name, context=24), vocab_size=291, seed=0)
    assert model.get_input_embeddings().weight.shape == (291, 32)
    assert model.config.num_hidden_layers == 2
    assert model.config.num_attention_heads == 4
    assert model.config.max_position_embeddings == 24


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradients_repeat_bit_for_bit(family_name, make_model_config, dropout):
    model = build_model(make_model_config(family_name, dropout=dropout), seed=0)
    (loss, first), (_, second) = _gradients(model), _gradients(model)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (_gradients(model, seed=1)[0] == loss) == (dropout == 0.0)


def test_settings_that_cannot_work_are_refused(make_model_config):
    with pytest.raises(ValueError, match=r"model.num_heads=3: must divide model.hidden_size=32"):
        build_model(make_model_config("gpt2", num_heads=3, num_kv_heads=3), seed=0)


def test_a_folders_cache_of_keys_and_values_is_off(make_model_config, tmp_path):
    folder = write_config(tmp_path / "it", use_cache=True)
    config = make_model_config("llama", pretrained=None, path=str(folder))
    assert build_model(config, seed=0).config.use_cache is False
