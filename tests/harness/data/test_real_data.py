"""Real data sets in the shapes they are published in."""

import json
from dataclasses import replace

import pytest

from gradwire.harness.data import tokenizer
from gradwire.harness.data.prepare import data_source, prepare_data
from gradwire.harness.data.settings import DatasetConfig, published_settings, resolve_dataset
from gradwire.harness.data.text import TextCorpus
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.runtime.conf import conf_directory

CONF = conf_directory() / "dataset"
MODEL = ModelConfig(vocab_size=300, context=64, recipe=RecipeConfig(sequence_length=16))


def _documents(corpus):
    return sorted([*corpus.train, *corpus.held_out])


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("wikitext-2/valid.txt", 60),
        ("wikitext-2/test.txt", 60),
        ("wikitext-103/valid.txt", 60),
        ("wikitext-103/test.txt", 60),
        ("wikitext-103", 120),
        ("wiki", 30),
        ("c4", 300),
        ("ultrachat/ultrachat_small.jsonl", 1000),
    ],
)
def test_the_known_number_of_documents_is_found(real_data, path, number):
    corpus = TextCorpus(real_data / path).load()
    assert len(_documents(corpus)) == number
    assert not set(corpus.train) & set(corpus.held_out)


@pytest.mark.parametrize(
    ("name", "path", "documents"),
    [
        ("wikitext103", "wikitext-103", (114, 6)),
        ("wikitext2", "wikitext-2", (4444, 60)),
        ("ultrachat", "ultrachat/ultrachat_small.jsonl", (950, 50)),
        ("c4", "c4", (None, None)),
        ("openwebtext", "c4/c4_demo.jsonl", (None, None)),
        ("pile", "wiki", (None, None)),
    ],
)
def test_samples_load_under_the_name_of_their_data_set(
    real_data, tmp_path, monkeypatch, name, path, documents
):
    monkeypatch.setattr(tokenizer, "TRAINING_BYTES", 20_000)
    published = DatasetConfig(**published_settings(name, CONF, "any"))
    asked = replace(published, path=str(real_data / path), max_train_tokens=10_000)
    asked = resolve_dataset(asked, MODEL, "paper", CONF)
    corpus = data_source(asked).load()
    numbers = [len(list(split)) for split in (corpus.train, corpus.held_out)]
    if asked.streaming:  # the share is one of hash values
        assert 0.02 < numbers[1] / sum(numbers) < 0.12
        data = prepare_data(asked, MODEL, tmp_path)
        assert data.train.numel() == 10_000 and len(data.held_out)
    else:
        assert numbers == list(documents)


def test_a_split_wikitext_folder_evaluates_on_its_valid_split(real_data):
    corpus = TextCorpus(real_data / "wikitext-2").load()
    assert sorted(corpus.held_out) == _documents(TextCorpus(real_data / "wikitext-2" / "valid.txt").load())
    assert "Robert <unk> is an English film" not in " ".join(corpus.train)  # the test split


def test_quotes_around_wikitext_103_are_gone(real_data):
    articles = " ".join(_documents(TextCorpus(real_data / "wikitext-103" / "test.txt").load()))
    assert '""' not in articles
    with (real_data / "wikitext-2" / "test_raw.jsonl").open(encoding="utf-8") as lines:
        paragraphs = [json.loads(line)["text"] for line in lines]
    # The same articles: only words rare in Wikitext-103 are <unk> there.
    shared = [paragraph for paragraph in paragraphs if paragraph in articles]
    assert len(shared) > 0.3 * len(paragraphs)
    assert any(' " ' in paragraph for paragraph in shared)


def test_shakespeare_is_cut_at_speeches_and_complete(real_data):
    documents = _documents(TextCorpus(real_data / "tinyshakespeare").load())
    text = (real_data / "tinyshakespeare" / "input.txt").read_text()
    assert sum(len(document.split()) for document in documents) == len(text.split())
    assert "First Citizen:\nBefore we proceed any further, hear me speak." in documents


def test_dialogues_keep_their_roles_and_text(real_data):
    corpus = TextCorpus(real_data / "ultrachat" / "ultrachat_small.jsonl").load()
    with (real_data / "ultrachat" / "ultrachat_small.jsonl").open(encoding="utf-8") as lines:
        messages = json.loads(next(lines))["messages"]
    dialogue = next(d for d in _documents(corpus) if messages[0]["content"].strip()[:80] in d)
    assert dialogue.startswith("user: ") and "\n\nassistant: " in dialogue
    assert all(message["content"].strip() in dialogue for message in messages)


def test_a_glue_task_is_read_by_its_column(real_data):
    corpus = TextCorpus(real_data / "glue" / "SST-2", text_field="sentence").load()
    assert len(list(corpus.held_out)) == 872
    assert "hide new secretions from the parental units" in corpus.train
