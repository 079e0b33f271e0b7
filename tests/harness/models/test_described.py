"""A folder's config.json describes its model; what it alone rules out is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from model_folders import write_config

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.models.described import describe
from gradwire.harness.models.folder import _of_hub
from gradwire.harness.runtime.errors import ConfigError

REMEDY = "use another"


def told(*overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        validate(compose(["size=tiny", *overrides]))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def of_folder(folder: Path, *overrides: str) -> str:
    return told("model=folder", f"model.path={folder}", *overrides)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (2, 32, 4, 4, 64, 128)),
        ({"num_key_value_heads": 2, "head_dim": 16}, (2, 32, 4, 2, 64, 128)),
        (
            {
                **dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads"), None),
                "n_layers": 3,
                "dim": 48,
                "n_heads": 6,
                "hidden_dim": 96,
                "intermediate_size": None,
            },
            (3, 48, 6, 6, 96, 128),
        ),
        ({"intermediate_size": None, "max_position_embeddings": None}, (2, 32, 4, 4, 128, None)),
        ({"model_type": "roberta", "pad_token_id": 1}, (2, 32, 4, 4, 64, 126)),
    ],
)
def test_each_family_has_names_of_its_own(
    settings: dict[str, Any], shape: tuple[int | None, ...], tmp_path: Path
) -> None:
    found = describe(write_config(tmp_path / "it", **settings) / "config.json", remedy=REMEDY)
    sizes = (found.num_layers, found.hidden_size, found.num_heads, found.num_kv_heads)
    assert (*sizes, found.intermediate_size, found.context) == shape


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_attention_heads": 5}, "has num_attention_heads=5, which does not divide hidden_size=32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3, which does not divide num_attention_heads=4"),
        ({"num_hidden_layers": None}, "has no num_hidden_layers, or n_layer"),
        ({"vocab_size": None}, "has no vocab_size"),
        ({"model_type": None}, "has no model_type"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration, which is neither a"),
        ({"architectures": None}, "its architecture is None, which is neither"),
        ({"architectures": ["ViTForImageClassification"], "image_size": 32}, "is of a model for images"),
    ],
)
def test_what_config_json_says_is_checked(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "it", **changes)
    assert reason in of_folder(folder, "model.weights=random")


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    assert "model=folder needs a folder: add model.path=<folder>" in told("model=folder")
    assert "no such folder" in of_folder(tmp_path / "none")
    folder = write_config(tmp_path / "it")
    assert "has none of model.safetensors" in of_folder(folder)
    assert "or add model.weights=random" in of_folder(folder)
    (folder / "pytorch_model.bin").touch()
    assert "its weights in pytorch_model.bin alone, which is a pickle" in of_folder(folder)
    assert "has no tokenizer.json" in of_folder(folder, "model.weights=random")
    assert "or give one by model.tokenizer=" in of_folder(folder, "model.weights=random")


def test_what_contradicts_a_folder_is_named(tmp_path: Path) -> None:
    folder, random = write_config(tmp_path / "it"), "model.weights=random"
    long = (
        "dataset.sequence_length=1024: the model in .*it has 128 positions; use dataset.sequence_length=128"
    )
    with pytest.raises(ConfigError, match=long):
        of = ("model=folder", f"model.path={folder}", random, "dataset.sequence_length=1024")
        validate(compose(["size=tiny", *of]))
    recipe = "model.recipe.sequence_length=1024"
    assert f"{recipe}: the model in {folder} has 128 positions" in of_folder(folder, random, recipe)
    assert "model.num_layers=3 contradicts the weights of" in of_folder(folder, "model.num_layers=3", random)
    assert "which was made for another; use model.objective=causal or model.objective=choice" in of_folder(
        folder, random, "model.objective=masked"
    )
    for given in ("model.pretrained=gpt2", "model.family=bert"):
        assert f"{given} has no effect with model=folder; its files" in of_folder(folder, random, given)
    assert "choose it by model=folder" in told("model.family=folder")
    (folder / "tokenizer.json").touch()
    assert "has a tokenizer of its own" in of_folder(folder, random, f"model.tokenizer={folder}")
    assert "use model=folder model.path=" in told("model=gpt2", f"model.path={folder}")


@pytest.mark.parametrize("given", ["/my/llm", "./llm", "../llm", "~/llm", "llm", "/a,/b"])
def test_a_path_is_no_preset(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    folder = given.replace("~", "/home/me")
    assert told(f"model={given}") == f"model={given} is a path; use model=folder model.path={folder}"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("connection"), "the hub cannot be reached"),
        (PermissionError("403"), "the hub does not give its config.json"),
    ],
)
def test_a_hub_without_the_model_is_told_in_words(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ValueError, match=f"^model.pretrained=nobody/nothing: {words}; .*model.path=<folder"):
        _of_hub("nobody/nothing", fetch=True)


def test_a_name_on_the_hub_is_no_preset() -> None:
    assert "after hf download meta-llama/Llama-3.2-1B --local-dir" in told("model=meta-llama/Llama-3.2-1B")


def test_reading_a_folder_needs_no_transformers(tmp_path: Path) -> None:
    path = write_config(tmp_path / "it") / "config.json"
    code = (
        "import sys; from pathlib import Path; from gradwire.harness.models.folder import described\n"
        "from gradwire.harness.models.described import describe\n"
        f"assert describe(Path({str(path)!r}), remedy='').num_layers == 2\n"
        "assert 'transformers' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
