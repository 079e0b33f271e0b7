"""Conversations to text: role-tagged, or by the tokenizer's own template."""

import json

import pytest

from gradwire.harness.data.chat import chosen_template, make_chat_format, plain_chat
from gradwire.harness.data.prepare import prepare_data
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.data.tokenizer import load_tokenizer
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
]
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}<|end|>{% endfor %}"
)
DATED = "{{ date_string if date_string is defined else strftime_now('%d') }}"


@pytest.fixture
def chatty(data, tmp_path):
    data.tokenizer.save_pretrained(tmp_path / "chatty")
    tokenizer = load_tokenizer(tmp_path / "chatty")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "chatty")
    return load_tokenizer(tmp_path / "chatty")


def test_plain_is_one_tagged_paragraph_per_message():
    text = "system: Be short.\n\nuser: Why?\n\nassistant: Because."
    assert plain_chat(MESSAGES) == text
    for name in ("auto", "plain"):
        assert make_chat_format(name, None)(MESSAGES) == text


def test_auto_is_the_template_of_a_tokenizer_that_has_one(chatty, data):
    text = "<system>Be short.<|end|><user>Why?<|end|><assistant>Because.<|end|>"
    for name in ("auto", "template"):
        assert chosen_template(name, chatty) == TEMPLATE
        assert make_chat_format(name, chatty)(MESSAGES) == text
    assert make_chat_format("plain", chatty) is plain_chat
    assert make_chat_format("auto", data.tokenizer) is plain_chat


def test_a_template_that_is_not_there_is_refused_in_one_line(data):
    for tokenizer in (None, data.tokenizer):
        with pytest.raises(
            ValueError, match=r"dataset.chat_format=template: .* use dataset.chat_format=plain"
        ) as no:
            make_chat_format("template", tokenizer)
        assert "\n" not in str(no.value)


def test_a_conversation_the_template_refuses_is_refused_in_one_line(chatty):
    with pytest.raises(ValueError, match=r"refuses a conversation \(no tools\); use dataset.chat") as refusal:
        make_chat_format("auto", chatty)([{"role": "tool", "content": "7"}])
    assert "\n" not in str(refusal.value)


def test_a_template_gives_the_same_text_on_any_day(chatty):
    chatty.chat_template = DATED
    assert make_chat_format("auto", chatty)(MESSAGES) == "26 Jul 2024"


def test_the_format_decides_the_tokens_and_what_is_cached(chatty, tmp_path):
    rows = [{"messages": [*MESSAGES, {"role": "user", "content": f"Number {n}?"}]} for n in range(60)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = ModelConfig(
        context=64, tokenizer=str(tmp_path / "chatty"), recipe=RecipeConfig(sequence_length=16)
    )

    def prepared(chat_format):
        dataset = DatasetConfig(path=str(tmp_path / "chats.jsonl"), chat_format=chat_format)
        data = prepare_data(resolve_dataset(dataset, model, "tiny", tmp_path), model, tmp_path / "cache")
        return data.tokenizer.decode(data.train.flatten().tolist())

    assert prepared("plain").startswith("system: Be short.\n\nuser: Why?")
    assert prepared("auto").startswith("<system>Be short.<|end|><user>Why?<|end|>")
    assert prepared("auto") == prepared("template")
    assert len([entry for entry in (tmp_path / "cache" / "packed").iterdir() if entry.is_dir()]) == 2
