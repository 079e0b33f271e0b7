"""`model=smollm2` and `model=minilm_glue`: refused without weights, pretrained at every size with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commands_here import FakeTask
from packaged_wheels import CONTEXT, SHAPE, Small

from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate
from gradwire.harness.packaged.catalogue import CATALOGUE, folder_of, not_fetched, packaged_at
from gradwire.harness.packaged.fetch import fetch
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.score.checkpoint import find_checkpoint
from gradwire.harness.trainer.settings import RunConfig

USUAL = ("cluster=virtual", "cluster.workers=2", "codec=fp32")
CHAT = ("model=smollm2", "dataset=embedded", *USUAL)
SIZES = ("paper", "gpu", "small", "tiny")


def settled(*overrides: str) -> RunConfig:
    return validate(compose([*overrides]))


def test_the_catalogue_is_complete() -> None:
    for name, weights in CATALOGUE.items():
        assert weights.name == name and (conf_directory() / "model" / f"{weights.model}.yaml").is_file()
        assert weights.room > 2 * weights.num_bytes
        assert all(len(bytes.fromhex(member.sha256)) == 32 for member in weights.members)
        assert {Path(member.name).name for member in weights.members} == {m.name for m in weights.members}
        suffixes = {Path(member.path).suffix for member in weights.members}
        assert suffixes <= {".gguf", ".safetensors", ".json", ".md", ""}


@pytest.mark.parametrize(("model", "name"), [("smollm2", "smollm2"), ("minilm_glue", "minilm")])
@pytest.mark.parametrize("size", SIZES)
def test_without_weights_the_command_that_fetches_them_is_named(
    small: Small, model: str, name: str, size: str
) -> None:
    told = f"^model={model}: the weights of .* have not been fetched .* task=weights name={name} does that"
    with pytest.raises(ConfigError, match=told):
        settled(f"model={model}", "dataset=embedded", f"size={size}", *USUAL)


def test_a_score_of_weights_that_are_not_here_names_the_command(small: Small) -> None:
    with pytest.raises(
        ValueError, match=r"^checkpoint=smollm2: .* task=weights name=smollm2 does that, once$"
    ):
        find_checkpoint("smollm2")
    fetch("smollm2")
    found = find_checkpoint("smollm2")
    assert (found.place, found.name, found.context) == (str(folder_of("smollm2")), "smollm2", CONTEXT)


def test_a_size_sets_the_data_of_a_step_and_no_more(small: Small) -> None:
    fetch("smollm2")
    runs = {size: settled(*CHAT, f"size={size}") for size in SIZES}
    paper = runs["paper"].model
    assert (paper.num_layers, paper.hidden_size) == (SHAPE["num_hidden_layers"], SHAPE["hidden_size"])
    assert (paper.path, paper.weights, paper.name) == (str(folder_of("smollm2")), "pretrained", "smollm2")
    for size, run in runs.items():
        recipe = replace(
            run.model.recipe,
            sequence_length=paper.recipe.sequence_length,
            micro_batch=paper.recipe.micro_batch,
        )
        assert replace(run.model, recipe=recipe) == paper
        assert run.train.lr == paper.recipe.lr == 5e-5, size
    lengths = [runs[size].model.recipe.sequence_length for size in SIZES]
    assert lengths == [2048, 512, 64, 64] and runs["tiny"].train.steps == 200


def test_the_cells_of_a_launcher_keep_it_as_planned(
    small: Small, run_py: Callable[..., int], task: FakeTask
) -> None:
    """Cells with workers pass through Hydra's launcher, which composes their overrides by itself."""
    fetch("smollm2")
    cells = ("cluster=local", "cluster.workers=2", "seed=0,1", "model.dropout=0.1")
    assert run_py("--multirun", "model=smollm2", "dataset=embedded", "codec=fp32", "size=tiny", *cells) == 0
    assert [config.seed for config, _ in task.ran] == [0, 1]
    for config, directory in task.ran:
        assert config.model.weights == "pretrained" and config.model.dropout == 0.1
        assert config.model.hidden_size == SHAPE["hidden_size"] and config.train.lr == 5e-5
        assert directory.name == run_name(config)


def test_a_folder_of_ones_own_or_random_weights_take_their_place(small: Small, tmp_path: Path) -> None:
    fetch("smollm2")
    own = folder_of("smollm2").rename(tmp_path / "own")
    assert not_fetched("smollm2") and packaged_at(own) is None
    assert settled(*CHAT, "size=tiny", f"model.path={own}").model.path == str(own)
    random = settled(*CHAT, "size=tiny", "model.weights=random").model
    assert (random.path, random.num_layers, random.tokenizer) == (None, 30, None)


def test_a_bert_without_a_head_gets_one_for_the_labels(small: Small, tmp_path: Path) -> None:
    from gradwire.harness.models.build import build_model

    fetch("minilm")
    for name in ("train", "dev"):
        (tmp_path / "SST-2").mkdir(exist_ok=True)
        (tmp_path / "SST-2" / f"{name}.tsv").write_text(f"sentence\tlabel\n{name} good\t1\n{name} bad\t0\n")
    run = settled("model=minilm_glue", "dataset=glue", f"dataset.path={tmp_path}", "size=small", *USUAL)
    assert (run.model.objective, run.train.lr, run.train.micro_batch) == ("classification", 3e-5, 4)
    model = build_model(run.model, seed=0, labels=("negative", "positive"))
    assert type(model).__name__ == "BertForSequenceClassification" and model.config.num_labels == 2
