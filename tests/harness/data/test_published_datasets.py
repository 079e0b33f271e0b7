"""Every published data set: the same from its repository and from its files, and nothing left behind."""

import copy
import gzip
import json
import shutil
from dataclasses import replace

import pytest
import torch
from repositories import REPOSITORIES, make_repository, sentences

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.data import hub, packing, tokenizer
from gradwire.harness.data.prepare import data_source, dataset_available, prepare_data
from gradwire.harness.data.settings import DatasetConfig, published_settings, resolve_dataset
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.record.identity import run_id
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError

CONF = conf_directory() / "dataset"
MODEL = ModelConfig(vocab_size=300, context=64, recipe=RecipeConfig(sequence_length=16))
FILES = {
    "wikitext103": "wikitext-103-raw-v1",
    "wikitext2": "wikitext-2-raw-v1",
    "ultrachat": "data",
    "openwebtext": "plain_text",
    "openwebtext2": ".",
    "wikipedia": "20231101.en",
    "pile": ".",
    "c4": "en",
}
COMMIT, OTHER = "1" * 40, "2" * 40


def settings(name, **changes):
    published = DatasetConfig(**published_settings(name, CONF, "any"))
    return resolve_dataset(replace(published, **changes), MODEL, "paper", CONF)


@pytest.mark.parametrize("name", REPOSITORIES)
def test_files_and_repository_give_the_same_tokens(name, home, capfd):
    repository = make_repository(name, home)
    fetched = prepare_data(settings(name, max_train_tokens=2000), MODEL, home / "hub")
    assert "Warning" not in (printed := "".join(capfd.readouterr())) and "%" not in printed
    path = str(repository / FILES[name])
    local = prepare_data(settings(name, max_train_tokens=2000, path=path), MODEL, home / "local")
    for split in ("train", "held_out"):
        assert torch.equal(getattr(fetched, split), getattr(local, split))
    assert fetched.train.numel() == 2000
    same = ("sha256", "bytes", "train_documents", "held_out_documents", "unigram_perplexity")
    assert [fetched.description[key] for key in same] == [local.description[key] for key in same]
    assert fetched.description["corpus"].startswith(REPOSITORIES[name][0])
    if settings(name).streaming:  # no second copy in the cache of `datasets`
        assert not list((home / "hf").rglob("*.arrow"))


def test_wikitext_rows_become_articles_and_conversations_documents(home):
    make_repository("wikitext2", home)
    corpus = data_source(settings("wikitext2")).load()
    articles = list(corpus.held_out)
    assert [article.split(" \n")[0] for article in articles] == [f"= validation {n} =" for n in range(8)]
    text = sentences("wikitext-2-raw-v1 validation", 8)[5]
    assert articles[5] == f"= validation 5 = \n\n {text} \n\n = = Part = = \n\n {text[::-1]}"
    make_repository("ultrachat", home)
    corpus = data_source(settings("ultrachat")).load()
    assert (corpus.split, len(list(corpus.train)), len(list(corpus.held_out))) == ("split test_sft", 60, 10)
    first = sentences("test_sft", 1)[0]
    assert next(iter(corpus.held_out)) == f"user: {first}\n\nassistant: {first[::-1]}"


def test_a_stream_stops_at_its_limit(home, monkeypatch):
    for module, name in (
        (hub, "ROWS_AT_ONCE"),
        (packing, "DOCUMENTS_AT_ONCE"),
        (tokenizer, "TRAINING_BYTES"),
    ):
        monkeypatch.setattr(module, name, 10)
    repository = make_repository("c4", home)
    last = repository / "en" / "c4-train.00002-of-00003.json.gz"
    last.write_bytes(gzip.compress(b'{"text": "fine"}\n{"text": broken'))
    data = prepare_data(settings("c4", max_train_tokens=1000), MODEL, home / "cache")
    assert data.train.numel() == 1000 // 16 * 16 and data.description["train_documents"] < 60
    with pytest.raises(ValueError, match=r"dataset=c4 \(allenai/c4\): cannot be read .* use data") as refusal:
        prepare_data(settings("c4"), MODEL, home / "cache")
    assert "\n" not in str(refusal.value)
    assert len([entry for entry in (home / "cache" / "packed").iterdir() if entry.is_dir()]) == 1


def test_what_a_repository_lacks_is_said_in_one_line(home):
    make_repository("c4", home)
    for changes, reason in (
        ({"held_out_split": "test"}, "train"),
        ({"configuration": "de"}, "de"),
        ({"text_field": "body"}, "no field 'body' (text) or 'messages' but text, timestamp, url"),
    ):
        with pytest.raises(ValueError) as refusal:
            prepare_data(settings("c4", **changes), MODEL, home / "cache")
        assert "dataset=c4 (allenai/c4)" in str(refusal.value) and reason in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_a_malformed_conversation_is_refused(home):
    repository = make_repository("ultrachat", home)
    file = repository / "data" / "train_sft-00000.jsonl"
    for found in repository.glob("data/*.parquet"):
        found.unlink()
    good = {"messages": [{"role": "user", "content": "Hello"}]}
    file.write_text("\n".join(map(json.dumps, [good, {"messages": [{"content": "Hello"}]}])))
    asked = settings("ultrachat", train_split="train", held_out_split=None, streaming=True)
    with pytest.raises(
        ValueError, match=r"dataset=ultrachat .*, split train: record 2: a message"
    ) as refusal:
        prepare_data(asked, MODEL, home / "cache")
    assert "\n" not in str(refusal.value)


@pytest.fixture
def cached(home):
    """Wikitext-2 as `datasets` leaves it in its cache after fetching it, and the repository gone."""
    make_repository("wikitext2", home)
    fetched = prepare_data(settings("wikitext2"), MODEL, home / "before")
    (made,) = (home / "hf" / "wikitext").glob("*/*/*/dataset_info.json")
    kept = home / "hf" / "Salesforce___wikitext" / "wikitext-2-raw-v1" / "0.0.0" / COMMIT
    shutil.copytree(made.parent, kept)
    shutil.rmtree(home / "Salesforce")
    return fetched


@pytest.mark.parametrize("streaming", [False, True])
def test_offline_the_cache_of_datasets_will_do(home, cached, streaming):
    for revision in (None, COMMIT):
        asked = settings("wikitext2", streaming=streaming, revision=revision)
        assert dataset_available(asked, MODEL) is None
        data = prepare_data(asked, MODEL, home / f"{streaming}{revision}")
        assert torch.equal(data.train, cached.train) and torch.equal(data.held_out, cached.held_out)
        assert data.description["corpus"] == f"Salesforce/wikitext wikitext-2-raw-v1 at {COMMIT[:12]}"


def test_another_revision_is_not_taken_for_the_one_asked_for(home, cached):
    asked = settings("wikitext2", revision=OTHER)
    assert "not in the Hugging Face cache" in dataset_available(asked, MODEL)
    with pytest.raises(ValueError, match=f"only revision {COMMIT} is in the Hugging Face cache; use data"):
        prepare_data(asked, MODEL, home / "cache")


def test_a_repository_that_changes_is_prepared_anew(home):
    repository = make_repository("openwebtext", home)
    prepare_data(settings("openwebtext"), MODEL, home / "cache")
    shutil.copy(
        repository / "plain_text" / "train-00000-of-00002.parquet",
        repository / "plain_text" / "train-2.parquet",
    )
    prepare_data(settings("openwebtext"), MODEL, home / "cache")
    assert len([entry for entry in (home / "cache" / "packed").iterdir() if entry.is_dir()]) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"hub": "a/b"},
        {"configuration": "x"},
        {"revision": "x"},
        {"files": {"train": "x"}},
        {"train_split": "x"},
        {"held_out_split": "x"},
        {"streaming": False},
        {"text_field": "x"},
        {"held_out_fraction": 0.1},
    ],
)
def test_whatever_changes_the_documents_changes_the_fingerprint(changes):
    before, after = settings("openwebtext"), settings("openwebtext", **changes)
    assert data_source(before).fingerprint() != data_source(after).fingerprint()


@pytest.mark.parametrize("name", REPOSITORIES)
def test_every_published_data_set_composes(name, home):
    make_repository(name, home)
    composed = compose(["size=tiny", f"dataset={name}", "eval.max_sequences=7"])
    published = published_settings(name, CONF, "any")
    assert published["streaming"] == (published["max_train_tokens"] is not None)
    for key, value in (published | {"max_train_tokens": 20_000_000}).items():  # which is the size's
        assert composed.dataset[key] == value, key
    composed = validate(composed).dataset
    assert composed.max_held_out_sequences == 7  # the smaller limit
    assert composed.hub == REPOSITORIES[name][0] and composed.name == name


def test_a_run_is_identified_by_what_its_data_is(home):
    make_repository("openwebtext", home)
    composed = compose(["size=small", "dataset=openwebtext"])
    variants = [{}, {"revision": "abc"}, {"max_train_tokens": 640}, {"chat_format": "plain"}]
    variants += [{"configuration": None}, {"hub": str(home)}, {"path": str(home)}]
    ids = []
    for changes in variants:
        config = copy.deepcopy(composed)
        config.dataset.update(changes)
        ids.append(run_id(validate(config)))
    assert len(set(ids)) == len(variants)
    assert run_id(validate(compose(["size=small"]))) == ids[0]  # gpt2's data in the paper


def test_without_a_hub_auto_says_which_data_set_is_missing(home):
    with pytest.raises(ConfigError) as refusal:
        validate(compose(["size=small", "model=llama1b"]))
    assert str(refusal.value) == (
        "dataset=auto: model=llama1b at size=small trains on ultrachat; dataset=ultrachat "
        "(HuggingFaceH4/ultrachat_200k): not in the Hugging Face cache and HF_HUB_OFFLINE is set; use "
        "dataset.path=<its files, or your own text> or dataset=embedded, or size=tiny"
    )
