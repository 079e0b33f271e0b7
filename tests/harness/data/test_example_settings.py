"""The data that an objective gets, and combinations that are refused before anything is read."""

from dataclasses import replace

import pytest
from presets import preset

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError

CONF = conf_directory() / "dataset"
MODELS = {"questions": preset("llama1b_mmlu"), "sentences": preset("tinybert_glue")}


def resolved(kind, size="paper", **asked):
    return resolve_dataset(DatasetConfig(**asked), MODELS[kind], size, CONF, kind)


def test_auto_is_what_dynamiq_trains_on_or_made_of_the_embedded_text():
    found = resolved("questions")
    assert (found.name, found.hub, found.configuration) == ("mmlu", "cais/mmlu", "all")
    assert (found.train_split, found.held_out_split) == ("auxiliary_train", "validation")
    found = resolved("sentences", configuration="cola")
    assert (found.name, found.hub, found.configuration) == ("glue", "nyu-mll/glue", "cola")
    for kind in MODELS:
        embedded = resolved(kind, "tiny")
        assert (embedded.name, embedded.kind) == ("embedded", kind)


def test_files_of_the_models_data_set_need_no_name():
    found = resolved("questions", path="x")
    assert (found.name, found.kind, found.hub, found.configuration) == ("mmlu", "questions", None, None)
    found = resolved("sentences", path="x", configuration="rte")
    assert (found.name, found.kind, found.hub, found.configuration) == ("glue", "sentences", None, "rte")


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["model=llama1b", "dataset=mmlu"],
            ["dataset=mmlu holds questions, and model.objective=causal trains on text", "objective=choice"],
        ),
        (
            ["model=llama1b_mmlu", "dataset=ultrachat"],
            ["dataset=ultrachat holds text, and model.objective=choice trains on questions", "dataset=mmlu"],
        ),
        (["model=tinybert", "dataset=glue"], ["holds labelled sentences", "model.objective=classification"]),
        (["model=llama1b_mmlu", "dataset=text", "dataset.path=x"], ["holds text", "trains on questions"]),
        (
            ["model=tinybert_glue", "dataset=glue", "dataset.configuration=mnli"],
            ["dataset.configuration=mnli: must be one of GLUE's tasks sst2, rte, cola"],
        ),
        (["model=bert_large", "model.objective=choice"], ["bert supports only masked, classification"]),
        (["model=gpt2", "model.objective=classification"], ["gpt2 supports only causal, choice"]),
        (
            ["model=llama1b_mmlu", "dataset=mmlu", "dataset.chat_format=plain"],
            ["dataset.chat_format=plain has no effect with model.objective=choice"],
        ),
        (
            ["model=llama1b_mmlu", "dataset=mmlu", "dataset.held_out_split=null"],
            ["dataset.held_out_split=null: questions are split already"],
        ),
        (["model=llama1b", "dataset.loss_on=assistant"], ["has no effect with dataset=embedded"]),
        (["model=gpt2", "dataset=c4", "dataset.loss_on=assistant"], ["dataset=c4 holds text, not chats"]),
        (
            ["model=bert_large", "dataset=ultrachat", "dataset.loss_on=assistant"],
            ["dataset.loss_on=assistant cannot be used with model.objective=masked"],
        ),
        (
            ["model=llama1b_mmlu", "dataset=mmlu", "dataset.sequence_length=300"],
            ["dataset.sequence_length=300: must be between 2 and model.context=256"],
        ),
        (
            ["model=resnet_small", "dataset=c4"],
            ["dataset=c4 holds text, and model.objective=image_classification trains on images", "cifar10"],
        ),
        (["model=gpt2", "dataset=cifar10"], ["dataset=cifar10 holds images", "model.objective=causal"]),
        (
            ["model=resnet_small", "dataset.sequence_length=64"],
            ["dataset.sequence_length=64 has no effect with model.objective=image_classification"],
        ),
        (
            ["model=gpt2", "dataset.augment=crop_flip"],
            ["dataset.augment=crop_flip has no effect with model.objective=causal", "model=resnet50"],
        ),
        (
            ["model=gpt2", "dataset.mask_probability=0.3"],
            ["dataset.mask_probability=0.3 has no effect with model.objective=causal", "model=bert_large"],
        ),
        (["model=resnet_small", "dataset.image_size=4"], ["dataset.image_size=4", "from 8 to 1024"]),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(overrides, parts):
    with pytest.raises(ConfigError) as refusal:
        validate(compose(["size=tiny", *overrides]))
    assert "\n" not in str(refusal.value)
    assert all(part in str(refusal.value) for part in parts), str(refusal.value)


@pytest.mark.parametrize(
    ("model", "files", "reason"),
    [
        ("llama1b_mmlu", [], "has no files of MMLU's split auxiliary_train"),
        ("llama1b_mmlu", ["test/a_test.csv"], "has no files of MMLU's split validation"),
        ("tinybert_glue", ["CoLA/train.tsv", "CoLA/dev.tsv"], "has no files of GLUE SST-2's split train"),
        ("tinybert_glue", ["SST-2/train.tsv"], "has no files of GLUE SST-2's split validation"),
    ],
)
def test_a_folder_that_lacks_a_split_is_refused(model, files, reason, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=reason) as refusal:
        validate(compose(["size=tiny", f"model={model}", f"dataset.path={tmp_path}"]))
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match="no such folder"):
        validate(compose(["size=tiny", f"model={model}", f"dataset.path={tmp_path / 'nowhere'}"]))


def test_a_broken_file_is_named(tmp_path):
    from gradwire.harness.data.prepare import prepare_data

    for folder, row in (("test", "What?,1,2,3,4,A"), ("val", "What?,1,2,3,4")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text(f"{row}\n")
    config = validate(compose(["size=tiny", "model=llama1b_mmlu", f"dataset.path={tmp_path}"]))
    with pytest.raises(ValueError, match=r"val/a.csv: line 1 is not a question .*; repair it") as refusal:
        prepare_data(config.dataset, config.model, tmp_path / "cache")
    assert "\n" not in str(refusal.value)


def test_mmlus_own_training_split_comes_before_its_stand_in(tmp_path):
    from gradwire.harness.data.prepare import data_source

    for folder in ("test", "val"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text(f"{folder}?,1,2,3,4,A\n")
    asked = resolved("questions", path=str(tmp_path))
    found = data_source(asked).load()
    assert found.split == "trained on test, evaluated on validation"
    assert [question.question for question in found.train] == ["test?"]
    (tmp_path / "auxiliary_train").mkdir()
    (tmp_path / "auxiliary_train" / "race.csv").write_text("race?,1,2,3,4,A\n")
    assert [question.question for question in data_source(asked).load().train] == ["race?"]
    assert data_source(asked).fingerprint() != data_source(replace(asked, train_split="test")).fingerprint()
