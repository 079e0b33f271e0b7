"""Hugging Face folders from elsewhere: refused in one line before transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, EXCHANGES, exchange, one_line, restore

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.models.foreign import ATTENTION, CONFIG, INDEX, check_folder

USUAL: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 32,
    "n_inner": None,
    "n_positions": 256,
    "vocab_size": 300,
    "dtype": "float32",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "folder"
    found.mkdir()
    (found / CONFIG).write_text(json.dumps(USUAL))
    (found / "model.safetensors").write_bytes(bytes(100_000))
    (found / "tokenizer.json").write_text("{}")
    check_folder(found, remedy="do something")
    return found


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_head": 0}, "n_head=0; allowed are whole numbers from 1 to 16384"),
        ({"n_layer": 1_000_000}, "n_layer=1000000; allowed are whole numbers from 0 to 1024"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "text_config.num_hidden_layers=1000000000; allowed"),
        ({"vocab_size": "x"}, "vocab_size='x'; allowed are whole numbers"),
        ({"n_embd": True}, "n_embd=True; allowed are whole numbers"),
        ({"intermediate_size": [64, -1]}, "intermediate_size=.* allowed are whole numbers"),
        ({"n_embd": 2**20}, "300 × 1048576 numbers, more than the weights' 97.7 KiB hold"),
        ({"n_positions": 2**24}, "n_positions=16777216: .* more than the weights'"),
        ({"dtype": "float8_x"}, "dtype='float8_x'; allowed are auto, float64, float32"),
        ({"torch_dtype": 5}, "torch_dtype=5; allowed are auto"),
        ({"attn_implementation": "a/b"}, "attn_implementation='a/b'; allowed are eager, sdpa"),
        ({"attn_implementation": "flash_attention_2"}, "allowed are eager, sdpa, flex_attention"),
        ({"text_config": {"_attn_implementation": "kernels-community/x"}}, "text_config._attn_impl.*allowed"),
        ({"attn_implementation": {"text_config": "a/b"}}, "attn_implementation=.*allowed are eager"),
        ({"experts_implementation": "a/b"}, "experts_implementation='a/b'; allowed are eager"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights are not loaded"),
    ],
)
def test_settings_that_fetch_fail_or_have_no_end_are_refused(
    settings: dict[str, Any], said: str, folder: Path
) -> None:
    (folder / CONFIG).write_text(json.dumps(USUAL | settings))
    with pytest.raises(UnusableFileError, match=f"{CONFIG}: has .*{said}.*; do something") as refused:
        check_folder(folder, remedy="do something")
    one_line(str(refused.value))


def test_usual_settings_pass(folder: Path) -> None:
    for more in (
        *({"attn_implementation": name} for name in (*ATTENTION, None)),
        {"torch_dtype": "torch.bfloat16"},
        {"quantization_config": None, "num_key_value_heads": None},
        {"text_config": {"num_hidden_layers": 2, "intermediate_size": [64, 64]}},
    ):
        (folder / CONFIG).write_text(json.dumps(USUAL | more))
        check_folder(folder, remedy="do something")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("../outside.safetensors", "names ../outside.safetensors, which is not a file in its folder"),
        ("/etc/passwd", "names /etc/passwd, which is not a file in its folder"),
        ("other.safetensors", "names other.safetensors, which is not there"),
        (5, "names 5, which is not there"),
    ],
)
def test_an_index_names_files_of_its_folder(named: object, said: str, folder: Path) -> None:
    (folder.parent / "outside.safetensors").touch()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    check_folder(folder, remedy="do something")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": named}}))
    with pytest.raises(UnusableFileError, match=said):
        check_folder(folder, remedy="do something")


@pytest.mark.parametrize("name", [CONFIG, INDEX, "model.safetensors", "tokenizer.json"])
def test_every_damage_is_refused_in_one_line_or_left_to_the_readers(name: str, folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    path, outside, sound = folder / name, folder.parent / "outside", (folder / name).read_bytes()
    outside.write_bytes(sound)
    for how in (*DAMAGES, *EXCHANGES):
        if how in EXCHANGES:
            exchange(path, EXCHANGES[how], outside)
        else:
            path.write_bytes(DAMAGES[how](sound, b"{}"))
        try:
            check_folder(folder, remedy="do something")
            assert how not in ("a link out of the folder", "a link to the environment")
        except UnusableFileError as error:
            one_line(str(error))
        finally:
            restore(path, sound)
    check_folder(folder, remedy="do something")
