"""Which data set a run gets, and which settings are refused."""

from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from gradwire.harness.data.config import DatasetConfig, resolve_dataset
from gradwire.harness.models.config import ModelConfig, RecipeConfig

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
    assert resolve_dataset(asked, MODEL, size) == replace(asked, name=name, sequence_length=64)


def test_the_sequence_length_can_be_set_apart_from_the_recipe():
    assert resolve_dataset(DatasetConfig(sequence_length=128), MODEL, "tiny").sequence_length == 128


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (DatasetConfig(), ("model=gpt2", "openwebtext", "dataset.path=", "dataset=embedded", "size=tiny")),
        (DatasetConfig(name="wiki"), ("dataset.name=wiki", "auto, embedded, text")),
        (DatasetConfig(name="text"), ("dataset.path",)),
        (DatasetConfig(name="embedded", path="x.txt"), ("dataset.path=x.txt", "dataset=text")),
        (DatasetConfig(name="embedded", sequence_length=1025), ("dataset.sequence_length=1025", "1024")),
        (DatasetConfig(name="embedded", sequence_length=-1), ("dataset.sequence_length=-1",)),
        (DatasetConfig(name="embedded", held_out_fraction=0.0), ("dataset.held_out_fraction=0.0",)),
        (DatasetConfig(name="embedded", mask_probability=1.0), ("dataset.mask_probability=1.0",)),
        (DatasetConfig(name="embedded", max_held_out_sequences=0), ("dataset.max_held_out_sequences=0",)),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(asked, named):
    with pytest.raises(ValueError) as refusal:
        resolve_dataset(asked, MODEL, "paper")
    assert all(part in str(refusal.value) for part in named)
    assert "\n" not in str(refusal.value)


def test_omegaconf_composes_settings():
    merged = OmegaConf.merge(OmegaConf.structured(DatasetConfig), {"path": "a.txt", "sequence_length": 7})
    assert OmegaConf.to_object(merged) == DatasetConfig(path="a.txt", sequence_length=7)
