"""The data set that a run gets, and settings that are refused."""

from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from gradwire.harness.data.settings import DatasetConfig, at_most_evaluated, resolve_dataset
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.runtime.conf import conf_directory

CONF = conf_directory() / "dataset"
MODEL = ModelConfig(recipe=RecipeConfig(sequence_length=64))


@pytest.mark.parametrize(
    ("asked", "size", "name"),
    [
        (DatasetConfig(), "tiny", "embedded"),
        (DatasetConfig(path="x.txt"), "tiny", "text"),
        (DatasetConfig(path="x.txt"), "paper", "text"),
        (DatasetConfig(name="embedded"), "paper", "embedded"),
        (DatasetConfig(name="text", path="x.txt"), "small", "text"),
    ],
)
def test_auto_is_your_text_or_the_embedded_at_size_tiny(asked, size, name):
    assert resolve_dataset(asked, MODEL, size, CONF) == replace(asked, name=name, sequence_length=64)


def _resolved(size="tiny", model=MODEL, **asked):
    return resolve_dataset(DatasetConfig(**asked), model, size, CONF)


def test_auto_is_what_the_paper_trains_the_model_on():
    found = _resolved("paper", max_train_tokens=640, chat_format="plain")
    assert (found.name, found.hub) == ("openwebtext", "Skylion007/openwebtext")
    assert found.streaming and found.configuration == "plain_text"
    assert (found.max_train_tokens, found.chat_format) == (640, "plain")  # what was asked for stays
    chat = _resolved("small", replace(MODEL, paper_dataset="ultrachat"))
    assert (chat.train_split, chat.held_out_split, chat.text_field) == ("train_sft", "test_sft", "messages")
    with pytest.raises(ValueError, match=r"model=gpt2 trains on moon, .*conf/dataset/moon.yaml; use data"):
        _resolved("paper", replace(MODEL, paper_dataset="moon"))


def test_files_take_the_place_of_the_repository():
    found = _resolved(name="pile", path="x", hub="a/b", files={"train": "*"}, held_out_split="val")
    assert (found.name, found.path, found.hub, found.files) == ("pile", "x", None, {})
    assert found.held_out_split == "val"


def test_the_smaller_limit_of_the_evaluation_counts():
    for given, most, expected in ((None, None, None), (5, None, 5), (None, 3, 3), (5, 3, 3), (3, 5, 3)):
        dataset = DatasetConfig(max_held_out_sequences=given)
        assert at_most_evaluated(dataset, most).max_held_out_sequences == expected


def test_the_sequence_length_can_be_set_apart_from_the_recipe():
    assert _resolved(sequence_length=128).sequence_length == 128


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (DatasetConfig(name="wiki"), ("dataset.name=wiki", "auto, embedded, text", "dataset.hub=")),
        (DatasetConfig(name="text", hub="a/b"), ("dataset.hub=a/b", "dataset=text")),
        (DatasetConfig(name="embedded", chat_format="odd"), ("dataset.chat_format=odd", "auto, plain")),
        (DatasetConfig(name="embedded", max_train_tokens=63), ("dataset.max_train_tokens=63", "64 tokens")),
        (DatasetConfig(name="text"), ("dataset.path",)),
        (DatasetConfig(name="embedded", path="x.txt"), ("dataset.path=x.txt", "dataset=text")),
        (DatasetConfig(name="embedded", sequence_length=1025), ("dataset.sequence_length=1025", "1024")),
        (DatasetConfig(name="embedded", sequence_length=-1), ("dataset.sequence_length=-1",)),
        (DatasetConfig(name="embedded", held_out_fraction=0.0), ("dataset.held_out_fraction=0.0",)),
        (DatasetConfig(name="embedded", mask_probability=0.3), ("dataset.mask_probability=0.3", "causal")),
        (DatasetConfig(name="embedded", max_held_out_sequences=0), ("dataset.max_held_out_sequences=0",)),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(asked, named):
    with pytest.raises(ValueError) as refusal:
        resolve_dataset(asked, MODEL, "paper", CONF)
    assert all(part in str(refusal.value) for part in named)
    assert "\n" not in str(refusal.value)


def test_omegaconf_composes_settings():
    merged = OmegaConf.merge(OmegaConf.structured(DatasetConfig), {"path": "a.txt", "sequence_length": 7})
    assert OmegaConf.to_object(merged) == DatasetConfig(path="a.txt", sequence_length=7)
