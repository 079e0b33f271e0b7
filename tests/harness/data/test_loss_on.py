"""dataset.loss_on=assistant: which tokens count, which rows are left out, and what is refused."""

import json
import math

import pytest
import torch

from gradwire.harness.data.chat import (
    counted_tokens,
    make_chat_format,
    marked,
    marked_at,
    plain_chat,
    spans_of,
    without_marks,
)
from gradwire.harness.data.corpus import hash_value
from gradwire.harness.data.prepare import prepare_data
from gradwire.harness.data.row_writer import CountedRowWriter
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.data.tokenizer import load_tokenizer
from gradwire.harness.models.build import build_model
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.objectives.registry import make_objective

MESSAGES = [
    {"role": "user", "content": "Why is it so?"},
    {"role": "assistant", "content": "Because of \ufdd0this\ufdd1."},
    {"role": "user", "content": "Really?"},
    {"role": "assistant", "content": "Yes."},
]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CONTEXT = 64


def test_marks_come_out_as_they_went_in():
    text, spans = "ab cd ef", [(1, 3), (6, 8)]
    document = marked_at(text, spans)
    assert spans_of(document) == (text, spans) and without_marks(document) == text
    assert spans_of("plain") == ("plain", []) and spans_of(marked("")) == ("", [(0, 0)])
    assert hash_value(document) == hash_value(text)  # so that both settings hold out the same documents


def test_a_token_counts_where_some_of_it_lies_inside():
    offsets = [(0, 2), (2, 4), (4, 5), (5, 5), (5, 9), (9, 10)]
    assert counted_tokens(offsets, [(3, 5), (9, 10)]) == [False, True, True, False, False, True]
    assert counted_tokens(offsets, []) == [False] * 6


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_the_assistants_words_are_marked_in_every_format(template, data, tmp_path):
    data.tokenizer.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.chat_template = template
    document = make_chat_format("auto", tokenizer, loss_on="assistant")(MESSAGES)
    text, spans = spans_of(document)
    clean = [{**message, "content": without_marks(message["content"])} for message in MESSAGES]
    assert text == make_chat_format("auto", tokenizer)(clean)
    end = "" if template is None else "<|end|>"
    assert [text[start:stop] for start, stop in spans] == ["Because of this." + end, "Yes." + end]


def test_a_template_that_rewrites_what_was_said_is_refused(data, tmp_path):
    data.tokenizer.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.chat_template = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(
        ValueError, match="does not write messages one after another; use dataset.chat_"
    ) as no:
        make_chat_format("auto", tokenizer, loss_on="assistant")(MESSAGES)
    assert "\n" not in str(no.value)


def test_rows_without_a_counted_prediction_are_left_out(tmp_path):
    tokens, counted = list(range(14)), [False] * 14
    counted[4] = counted[10] = True  # the first of the second row, which nothing predicts; one of the third
    with CountedRowWriter(tmp_path / "a.npy", tmp_path / "a.counted.npy", 4) as writer:
        for start in range(0, 14, 3):
            writer.append(tokens[start : start + 3], counted[start : start + 3])
    assert (writer.num_rows, writer.num_left_out, writer.num_counted) == (1, 2, 1)


def prepared(folder, **settings):
    model = ModelConfig(
        family="llama",
        vocab_size=300,
        context=CONTEXT,
        num_layers=1,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=2,
        recipe=RecipeConfig(sequence_length=16),
    )
    asked = resolve_dataset(DatasetConfig(path=str(folder), **settings), model, "tiny", folder)
    return prepare_data(asked, model, folder.with_name(f"{folder.name}-cache")), model


@pytest.fixture
def chats(tmp_path):
    lines = [
        {"messages": [{**message, "content": f"{message['content']} {number}"} for message in MESSAGES]}
        for number in range(40)
    ]
    lines.append({"messages": [{"role": "user", "content": "words and more words " * 40}]})
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_the_labels_of_a_run_are_the_assistants_words(chats):
    data, model = prepared(chats, loss_on="assistant")
    everything, _ = prepared(chats)
    same = ("sha256", "bytes", "train_documents", "held_out_documents")
    assert [data.description[key] for key in same] == [everything.description[key] for key in same]
    assert data.description["train_rows_left_out"] > 0
    assert data.description["train_counted_tokens"] == int(data.column("train", "counted").sum())
    objective = make_objective("causal", data)
    batch = objective.batch(torch.arange(len(data.train)))
    counted = batch["labels"] != -100
    assert counted[:, 1:].any(1).all()
    said = data.tokenizer.decode(batch["labels"][counted])
    words = plain_chat([{**MESSAGES[1], "content": "Because of this."}])
    assert "Because of" in said and "Yes." in said
    assert "user" not in said and "Why" not in said and "Really" not in said and words not in said
    built = build_model(model, data.vocab_size, seed=0)
    metrics = objective.metrics(objective.evaluate(built.eval(), torch.arange(2), torch.device("cpu")))
    assert math.isfinite(metrics["loss"])


def test_text_without_an_assistant_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some words and more\n\n" * 40 + "other words\n\nand others\n")
    with pytest.raises(ValueError, match="have no messages of an assistant; use dataset.loss_on=all"):
        prepared(tmp_path, loss_on="assistant", sequence_length=4, held_out_fraction=0.4)
