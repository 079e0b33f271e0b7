"""A saved model is a complete folder that loads to the same function."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from gradwire.harness.data.corpus import Corpus
from gradwire.harness.data.tokenizer import pretrained_tokenizer, trained_tokenizer
from gradwire.harness.files.writing import as_new_files, save_tensors
from gradwire.harness.models.build import build_model, save_model
from gradwire.harness.models.folder import settled
from gradwire.harness.models.settings import ModelConfig

TEXT = "def step(loss): the gradient of the loss is sent to all workers — naïvely"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    corpus = Corpus("sample", (TEXT, TEXT.upper()), (TEXT,), "")
    return trained_tokenizer(corpus.train, 300, tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _from(folder, config):
    return replace(config, weights="pretrained", path=str(folder))


def test_a_saved_model_gives_the_same_logits(family_name, make_model_config, tokenizer, tmp_path):
    config = make_model_config(family_name)
    model = build_model(config, seed=3).eval()
    save_model(model, tokenizer, tmp_path / "model")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in (tmp_path / "model").iterdir()
    }

    loaded = build_model(_from(tmp_path / "model", config), seed=0).eval()
    tokens = torch.tensor([tokenizer(TEXT)["input_ids"][:16]])
    assert torch.equal(loaded(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_its_tokenizer_comes_back_whatever_the_family(family_name, make_model_config, tokenizer, tmp_path):
    config = make_model_config(family_name)
    save_model(build_model(config, seed=3), tokenizer, tmp_path / "model")
    loaded = pretrained_tokenizer(_from(tmp_path / "model", config))
    assert loaded(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.decode(loaded(TEXT)["input_ids"]) == TEXT


def test_the_saved_special_tokens_are_the_tokenizers(family_name, make_model_config, tokenizer, tmp_path):
    model = build_model(make_model_config(family_name, tokenizer="some/other"), seed=3)
    save_model(model, tokenizer, tmp_path / "model")
    saved = AutoConfig.from_pretrained(tmp_path / "model")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        assert getattr(saved, name) == getattr(tokenizer, name)


def test_loading_applies_dropout_to_the_shape_of_the_weights(make_model_config, tokenizer, tmp_path):
    save_model(build_model(make_model_config("gpt2"), seed=0), tokenizer, tmp_path / "model")
    asked = make_model_config("gpt2", dropout=0.3, num_layers=5)
    settings = settled(_from(tmp_path / "model", asked))
    model = build_model(settings, seed=0)
    assert settings.num_layers == model.config.n_layer == 2
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}
    assert model.training


def test_saving_again_replaces_the_folder(make_model_config, tokenizer, tmp_path):
    config = make_model_config("llama")
    folder = tmp_path / "model"
    save_model(build_model(config, seed=1), tokenizer, folder)
    (folder / "left_over").touch()
    second = build_model(config, seed=2)
    save_model(second, tokenizer, folder)
    loaded = build_model(_from(folder, config), seed=0).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in second.state_dict().items())
    assert not (folder / "left_over").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_folder(make_model_config, tokenizer, tmp_path):
    model, folder = build_model(make_model_config("llama"), seed=1), tmp_path / "model"
    save_model(model, tokenizer, folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    class FullDisk:
        pad_token_id = bos_token_id = eos_token_id = None

        def save_pretrained(self, folder):
            raise RuntimeError("No space left on device (os error 28)")  # tokenizers, written in Rust

    with pytest.raises(OSError, match="model cannot be written .No space left"):
        save_model(build_model(make_model_config("llama"), seed=2), FullDisk(), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


class Runs:
    """A pickle that would make a folder if it were loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harm",)


PICKLED = pickle.dumps({"weights": Runs(), "as long as the settings say": bytes(16_000)}, protocol=2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", PICKLED),
        ("model.safetensors", PICKLED),
        ("model.safetensors", b""),
    ],
    ids=["pickled", "pickled under another name", "emptied"],
)
def test_weights_that_are_no_tensors_are_refused_in_one_line(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="has weights that cannot be loaded") as refusal:
        build_model(ModelConfig(weights="pretrained", path=str(tmp_path)), seed=0)
    assert str(refusal.value).isprintable()
    assert not (tmp_path / "harm").exists()


def test_weights_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    weights, new = tmp_path / "folder" / "model.safetensors", tmp_path / "new"
    save_file({"a": torch.zeros(2)}, weights)
    new.touch()
    as_new_files(weights)
    assert weights.stat().st_mode == new.stat().st_mode


def test_files_left_by_a_killed_process_are_removed_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed while it looks at the permissions of a new file: nothing is tidied up."""
    weights = tmp_path / "gradwire-rank0.safetensors"
    save_file({"a": torch.zeros(2)}, weights)
    killed = os.fork()
    if not killed:
        try:
            monkeypatch.setattr(Path, "stat", lambda self: os._exit(9))
            as_new_files(weights)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == 9
    assert len(list(tmp_path.iterdir())) == 2
    save_tensors(weights, {"a": torch.ones(2)})
    assert list(tmp_path.iterdir()) == [weights]
