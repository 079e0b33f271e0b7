"""Hugging Face folders of families that no preset is of train, resume and are scored; records say what they
are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_folders import save_folder
from pool import Workers
from recorded import outcome
from safetensors.torch import load_file, save_file
from test_score_held_out import write_glue, write_text
from training_jobs import train_all_virtually, train_rank

from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.models.folder import model_in_words
from gradwire.harness.record.identity import settings_id
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.score.study import STUDY as SCORE
from gradwire.harness.trainer.settings import RunConfig

SHORT = (
    *("size=tiny", "cluster.workers=2", "train.steps=2", "train.warmup_steps=1"),
    *("train.micro_batch=2", "eval.every=2", "eval.max_sequences=4", "parallel.bucket_cap_mb=0.02"),
)
RECORDED = {
    "neox": ("gpt_neox", "GPTNeoXForCausalLM", "causal", 128, 64),
    "roberta": ("roberta", "RobertaForMaskedLM", "masked", 64, 64),
    "distilbert": ("distilbert", "DistilBertForSequenceClassification", "classification", 64, 64),
}
"""Family, architecture, objective, positions, and the sequences that size=tiny trains on."""


def settings(folder: Path, *overrides: str, codec: str = "mxfp8") -> RunConfig:
    chosen = ("model=folder", f"model.path={folder}", f"codec={codec}")
    return validate(compose([*chosen, *SHORT, *overrides]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("folders")
    return {name: save_folder(place / name, name) for name in RECORDED}


def scored(checkpoint: Path, folder: Path, data: Path, *tasks: str) -> dict[str, Any]:
    asked = (f"checkpoint={checkpoint}", f"score.data={data}", "score.limit=2", *tasks)
    assert SCORE.run(validate_any(compose(["task=score", *asked])), folder) == 0
    found: dict[str, Any] = json.loads((folder / "scores.json").read_text())
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_a_folder_is_trained_resumed_scored_and_recorded(
    name: str, folders: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    family, architecture, objective, positions, length = RECORDED[name]
    write_text(tmp_path / "text")
    write_glue(tmp_path / "glue")
    glue = ("dataset=glue", f"dataset.path={tmp_path / 'glue'}") if objective == "classification" else ()
    config = settings(folders[name], "cluster=virtual", *glue)
    train_all_virtually(config, str(tmp_path / "whole"))
    for stop_after in (1, None):
        train_all_virtually(config, str(tmp_path / "parts"), stop_after)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    recorded = yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())
    model, summary = recorded["model"], json.loads((tmp_path / "whole" / "summary.json").read_text())
    told = [model[key] for key in ("name", "family", "architecture", "objective", "context")]
    assert told == [name, family, architecture, objective, positions]
    shape = [model[key] for key in ("num_layers", "hidden_size", "num_heads", "vocab_size")]
    assert shape == [2, 32, 4, 300] and model["weights"] == "pretrained"
    assert recorded["dataset"]["sequence_length"] == length and recorded["train"]["lr"] == 5e-5
    assert model["parameters"] == summary["num_coordinates"]
    assert settings_id(recorded) == summary["config_hash"] and run_name(config).startswith(f"{name}-mxfp8-")
    assert f"{family} of 2 layers, 32 channels and 4 heads" in model_in_words(config.model)
    saved = json.loads((tmp_path / "whole" / "checkpoint" / "config.json").read_text())
    assert saved["architectures"] == [architecture] and saved["model_type"] == family
    own, tasks = (data, ("tasks=[piqa]",)) if objective == "causal" else (tmp_path, ())
    found = scored(tmp_path / "whole", tmp_path / "scores", own, *tasks)
    assert (found["architecture"], found["parameters"]) == (architecture, model["parameters"])
    assert found["context"] == positions and found["trained"]["model"]["family"] == family


def test_a_real_run_of_a_folder_equals_a_virtual_one(
    folders: dict[str, Path], tmp_path: Path, workers: Workers
) -> None:
    real = settings(folders["neox"], "parallel=sharded")
    assert workers(2)(train_rank, real, str(tmp_path / "real")) == [True] * 2
    train_all_virtually(settings(folders["neox"], "parallel=sharded", "cluster=virtual"), str(tmp_path / "v"))
    first, second = (
        load_file(tmp_path / each / "checkpoint" / "model.safetensors") for each in ("real", "v")
    )
    assert first.keys() == second.keys()
    assert all(first[key].equal(second[key]) for key in first)


def test_weights_decide_the_shape_of_a_preset_too(folders: dict[str, Path], tmp_path: Path) -> None:
    from random_checkpoints import save_random

    path = save_random(tmp_path / "gpt2", context=96)
    usual = ("size=tiny", "model=gpt2", "model.weights=pretrained", f"model.path={path}", "cluster=virtual")
    model = validate(compose(usual)).model
    assert (model.name, model.family, model.architecture) == ("gpt2", "gpt2", "GPT2LMHeadModel")
    assert (model.num_layers, model.hidden_size, model.num_heads, model.context) == (1, 32, 2, 96)
    told = "dataset.sequence_length=97: the model in .*gpt2 has 96 positions; use dataset.sequence_length=96"
    with pytest.raises(ConfigError, match=told):
        validate(compose([*usual, "dataset.sequence_length=97"]))
    with pytest.raises(ConfigError, match="holds a gpt_neox, and model=gpt2 is a gpt2; use model=folder"):
        validate(compose([*usual, f"model.path={folders['neox']}"]))


def test_blocks_know_a_folders_layers_and_pipelines_refuse_them(folders: dict[str, Path]) -> None:
    settings(
        folders["neox"],
        "parallel=blocks",
        "parallel.bucket_cap_mb=25",
        "parallel.num_blocks=2",
        "cluster=virtual",
        codec="bf16",
    )
    with pytest.raises(ConfigError, match="more than the model's"):
        settings(
            folders["neox"],
            "parallel=blocks",
            "parallel.bucket_cap_mb=25",
            "parallel.num_blocks=9",
            "cluster=virtual",
            codec="bf16",
        )
    with pytest.raises(ConfigError, match="its family, gpt_neox, is none of bert"):
        settings(folders["neox"], "parallel=pipeline", "parallel.stages=2", "cluster=virtual", codec="bf16")


def test_what_does_not_load_is_refused_before_the_start(folders: dict[str, Path], tmp_path: Path) -> None:
    def refused(name: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as told:
            settings(tmp_path / name, "cluster=virtual", *overrides)
        return str(told.value)

    for name in RECORDED:
        shutil.copytree(folders[name], tmp_path / name)
    weights = load_file(tmp_path / "neox" / "model.safetensors")
    weights.pop("gpt_neox.layers.1.mlp.dense_4h_to_h.weight")
    save_file(weights, tmp_path / "neox" / "model.safetensors", {"format": "pt"})
    assert "has weights without gpt_neox.layers.1.mlp.dense_4h_to_h.weight" in refused("neox")
    cut = tmp_path / "neox" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-8])
    assert "is not a whole safetensors file" in refused("neox")

    config = tmp_path / "distilbert" / "config.json"
    known = json.loads(config.read_text())
    three = {str(index): str(index) for index in range(3)}
    config.write_text(json.dumps(known | {"id2label": three}))
    assert "its head tells 3 labels apart, and dataset=embedded has 2" in refused("distilbert")
    config.write_text(json.dumps(known | {"pad_token_id": 7}))
    assert "pads with 0, and the model's config.json has pad_token_id=7" in refused("distilbert")

    config = tmp_path / "roberta" / "config.json"
    known = json.loads(config.read_text())
    config.write_text(json.dumps(known | {"vocab_size": 290}))
    assert "cannot be loaded" in refused("roberta")
    assert "300 entries, and the model in " in refused("roberta", "model.weights=random")
    config.write_text(json.dumps(known | {"model_type": "unheard_of"}))
    assert "model_type=unheard_of, which transformers" in refused("roberta")
