"""Conversion of chats to documents, and marks around the parts of a document that the loss is on.

The marks are two noncharacters of Unicode, which no text contains: they stay in the text until it is
tokenized. `plain` writes every message as "role: content" with a blank line between messages. This text
belongs to no particular tokenizer, so any model can be trained on it. `template` applies the tokenizer's own
chat template, special tokens included, which is what a chat model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGIN, END = "\ufdd0", "\ufdd1"

Spans = list[tuple[int, int]]
"""First and last (exclusive) character of each marked part."""


def without_marks(text: str) -> str:
    """The text without marks, for display."""
    return text.replace(BEGIN, "").replace(END, "") if BEGIN in text or END in text else text


def marked(text: str) -> str:
    """The text between two marks."""
    return f"{BEGIN}{without_marks(text)}{END}"


def marked_at(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text with marks around `spans`, which are in order and do not overlap."""
    parts, done = [], 0
    for start, stop in spans:
        parts += [text[done:start], marked(text[start:stop])]
        done = stop
    return "".join([*parts, text[done:]])


def spans_of(text: str) -> tuple[str, Spans]:
    """The text without its marks, and the spans that they enclosed."""
    spans, length = Spans(), 0
    outside, *parts = text.split(BEGIN)
    plain = [outside]
    length = len(outside)
    for part in parts:
        inside, _, outside = part.partition(END)
        spans.append((length, length + len(inside)))
        plain += [inside, outside]
        length += len(inside) + len(outside)
    return "".join(plain), spans


def counted_tokens(offsets: Sequence[tuple[int, int]], spans: Spans) -> list[bool]:
    """True for each token with a character inside a span; `offsets` are their first and last characters."""
    found, index = [], 0
    for start, stop in offsets:
        while index < len(spans) and spans[index][1] <= start:
            index += 1
        found.append(index < len(spans) and stop > spans[index][0] and start < stop)
    return found


Messages = Sequence[Mapping[str, str]]
ChatFormat = Callable[[Messages], str]

ASSISTANT = "assistant"
"""The role whose messages `dataset.loss_on=assistant` counts."""

TEMPLATE_DATE = "26 Jul 2024"
"""The date for templates that print today's date, which would give different tokens tomorrow. (This is Llama
3.2's own default.)"""


def plain_chat(messages: Messages) -> str:
    """Writes every message as "role: content", with a blank line between two messages."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def plain_chat_of_assistant(messages: Messages) -> str:
    """`plain_chat` with marks around the assistant's messages."""
    parts = []
    for message in messages:
        content = without_marks(message["content"])
        is_assistants = message["role"] == ASSISTANT
        parts.append(f"{message['role']}: {marked(content) if is_assistants else content}")
    return "\n\n".join(parts)


def chosen_template(name: str, tokenizer: PreTrainedTokenizerFast | None) -> str | None:
    """Returns the text of the template that `dataset.chat_format=name` stands for; None for the plain form.

    Raises ValueError if a template is requested and the tokenizer has none. (A tokenizer of None has yet to
    be trained.)
    """
    template: Any = tokenizer.chat_template if tokenizer is not None else None
    if isinstance(template, dict):
        template = template.get("default")
    if name == "template" and not template:
        which = "trained on the data" if tokenizer is None else tokenizer.name_or_path
        raise ValueError(
            f"dataset.chat_format=template: the tokenizer ({which}) has no chat template; use "
            "dataset.chat_format=plain"
        )
    return None if name == "plain" or not template else str(template)


def make_chat_format(
    name: str, tokenizer: PreTrainedTokenizerFast | None, *, loss_on: str = "all"
) -> ChatFormat:
    """Returns a function from a conversation to a document. Raises the errors of `chosen_template`.

    With `loss_on=assistant` the function marks the assistant's messages.
    """
    template = chosen_template(name, tokenizer)
    if template is None or tokenizer is None:
        return plain_chat if loss_on == "all" else plain_chat_of_assistant
    apply = _apply_template if loss_on == "all" else _apply_template_of_assistant
    return partial(apply, tokenizer, template)


def _apply_template_of_assistant(
    tokenizer: PreTrainedTokenizerFast, template: str, messages: Messages
) -> str:
    """Marks the assistant's parts, which are found by applying the template to prefixes of the conversation.

    A part begins after the template's prompt for an answer and includes the end of the turn, which the model
    should learn.
    """
    conversation = [{**message, "content": without_marks(message["content"])} for message in messages]
    whole, spans = _apply_template(tokenizer, template, conversation), []
    for index, message in enumerate(conversation):
        if message["role"] == ASSISTANT:
            before = _apply_template(tokenizer, template, conversation[:index], asks=True)
            after = _apply_template(tokenizer, template, conversation[: index + 1])
            if not whole.startswith(before) or not whole.startswith(after):
                raise ValueError(
                    f"dataset.loss_on=assistant: the chat template of {tokenizer.name_or_path} does not "
                    "write messages one after another; use dataset.chat_format=plain or dataset.loss_on=all"
                )
            spans.append((len(before), len(after)))
    return marked_at(whole, spans)


def _apply_template(
    tokenizer: PreTrainedTokenizerFast, template: str, messages: Messages, *, asks: bool = False
) -> str:
    """The conversation as text; with `asks`, including the template's prompt for the assistant's answer."""
    from jinja2 import TemplateError

    conversation = [dict(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            conversation,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=asks,
            date_string=TEMPLATE_DATE,
        )
    except TemplateError as error:
        raise ValueError(
            f"dataset.chat_format=template: {tokenizer.name_or_path} refuses a conversation ({error}); use "
            "dataset.chat_format=plain"
        ) from error
    return str(text)
