"""From settings to tokens: cached, the same in every process, safe when prepared by several."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradwire.harness.data import prepare, tokenizer
from gradwire.harness.data.prepare import prepare_data
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.models.build import build_model, save_model
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

MODEL = ModelConfig(
    num_layers=1,
    hidden_size=16,
    num_heads=2,
    num_kv_heads=2,
    intermediate_size=32,
    vocab_size=300,
    context=64,
    recipe=RecipeConfig(sequence_length=16),
)

NOWHERE = Path("nowhere")

PREPARE = """
import hashlib, sys, time
from pathlib import Path
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.data.prepare import prepare_data
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
path, cache, ready = sys.argv[1:]
model = ModelConfig(vocab_size=300, context=64, recipe=RecipeConfig(sequence_length=16))
dataset = resolve_dataset(DatasetConfig(path=path), model, "tiny", Path("nowhere"))
prepare_data(dataset, model, Path(ready, "imports"))
Path(ready, str(hash("ready"))).touch()
while len(list(Path(ready).iterdir())) < 3:
    time.sleep(0.001)
data = prepare_data(dataset, model, Path(cache))
assert "datasets" not in sys.modules  # a second for nothing
print(hashlib.sha256(data.train.numpy().tobytes() + data.held_out.numpy().tobytes()).hexdigest())
"""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        "\n\n".join(f"The gradient of worker {n} is {n * n} and travels in a ring." for n in range(300))
    )
    return path


def _digest(data):
    return hashlib.sha256(data.train.numpy().tobytes() + data.held_out.numpy().tobytes()).hexdigest()


def _resolved(path, **changes):
    return resolve_dataset(DatasetConfig(path=str(path), **changes), MODEL, "tiny", NOWHERE)


def test_processes_that_prepare_at_once_get_the_same_tokens(text, tmp_path):
    ready, cache = tmp_path / "ready", tmp_path / "cache"
    ready.mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(text), str(cache), str(ready)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    digests = {process.communicate(timeout=60)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert digests == {_digest(prepare_data(_resolved(text), MODEL, tmp_path / "elsewhere"))}
    assert len([entry for entry in (cache / "packed").iterdir() if entry.is_dir()]) == 1


def test_prepared_tokens_are_taken_from_the_cache(text, tmp_path, monkeypatch):
    first = prepare_data(_resolved(text), MODEL, tmp_path)
    monkeypatch.setattr(prepare, "write_packed", None)
    monkeypatch.setattr(prepare.TextCorpus, "load", None)
    masked = DatasetConfig(path=str(text), mask_probability=0.3)
    masked = resolve_dataset(masked, replace(MODEL, objective="masked"), "tiny", NOWHERE)
    again = prepare_data(masked, MODEL, tmp_path)
    assert _digest(again) == _digest(first)
    assert again.description == first.description
    assert (first.mask_probability, again.mask_probability) == (0.15, 0.3)


def test_whatever_changes_the_tokens_is_prepared_anew(text, tmp_path):
    model = replace(MODEL, vocab_size=270)
    variants = [(_resolved(text), MODEL), (_resolved(text), model)]
    variants += [
        (_resolved(text, sequence_length=17), MODEL),
        (_resolved(text, held_out_fraction=0.1), MODEL),
    ]
    variants += [(_resolved(text, max_held_out_sequences=2), MODEL)]
    variants += [(_resolved(text, max_train_tokens=100), MODEL), (_resolved(text, streaming=True), MODEL)]
    prepared = [prepare_data(dataset, model, tmp_path) for dataset, model in variants]
    text.write_text(text.read_text().replace("ring", "line"))
    prepared.append(prepare_data(_resolved(text), MODEL, tmp_path))
    assert len({_digest(data) for data in prepared}) == len(prepared)


def test_no_held_out_document_is_trained_on(text, tmp_path):
    data = prepare_data(_resolved(text), MODEL, tmp_path)
    held_out = data.tokenizer.decode(data.held_out.flatten().tolist()).split("<|end|>")[:-1]
    trained = set(data.tokenizer.decode(data.train.flatten().tolist()).split("<|end|>"))
    assert len(held_out) >= 10
    assert not trained & set(held_out)


def test_pretrained_weights_bring_their_tokenizer(text, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"{n} bottles of beer" for n in range(300)))
    own = prepare_data(_resolved(other), MODEL, tmp_path).tokenizer
    save_model(build_model(MODEL, len(own), seed=0), own, tmp_path / "weights")
    model = replace(MODEL, weights="pretrained", path=str(tmp_path / "weights"))
    data = prepare_data(_resolved(text), model, tmp_path)
    assert data.tokenizer.get_vocab() == own.get_vocab()
    assert data.tokenizer.get_vocab() != prepare_data(_resolved(text), MODEL, tmp_path).tokenizer.get_vocab()

    loaded = build_model(model, seed=0)
    rows = data.train[:4].long()
    assert torch.isfinite(loaded(input_ids=rows, labels=rows).loss)


def test_random_weights_take_a_tokenizer_by_name(text, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"{n} bottles of beer" for n in range(300)))
    named = prepare_data(_resolved(other), replace(MODEL, vocab_size=290), tmp_path).tokenizer
    named.save_pretrained(tmp_path / "named")
    model = replace(MODEL, tokenizer=str(tmp_path / "named"))
    data = prepare_data(_resolved(text), model, tmp_path)
    assert data.tokenizer.get_vocab() == named.get_vocab() and data.vocab_size == len(named)
    loaded = build_model(model, data.vocab_size, seed=0)
    rows = data.train[:4].long()
    assert torch.isfinite(loaded(input_ids=rows, labels=rows).loss)

    missing = replace(MODEL, tokenizer=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"tokenizer of .*none.* model.tokenizer=null") as refusal:
        prepare_data(_resolved(text), missing, tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_learns_from_the_beginning_of_a_long_text(text, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "TRAINING_BYTES", 2000)
    long = tmp_path / "long.txt"
    long.write_text(text.read_text() + "\n\n" + "\n\n".join(f"other words {n} other" for n in range(3000)))
    vocabularies = []
    for path in (text, long):
        data = prepare_data(_resolved(path, streaming=True), MODEL, tmp_path / path.stem)
        vocabularies.append(data.tokenizer.get_vocab())
    assert vocabularies[0] == vocabularies[1]


def test_a_missing_tokenizer_is_refused_with_the_ways_out(text, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = replace(MODEL, weights="pretrained", path=str(tmp_path))
    with pytest.raises(ValueError, match=r"tokenizer of .*model.weights=random") as refusal:
        prepare_data(_resolved(text), model, tmp_path)
    assert "\n" not in str(refusal.value)
