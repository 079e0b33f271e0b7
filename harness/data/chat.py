"""Turns conversations into documents.

`plain` writes every message as "role: content" with a blank line between messages. This text belongs to no
particular tokenizer, so any model can learn it. `template` applies the tokenizer's own chat template, special
tokens included, which is what a chat model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Messages = Sequence[Mapping[str, str]]
ChatFormat = Callable[[Messages], str]

TEMPLATE_DATE = "26 Jul 2024"
"""Templates that print today's date would yield different tokens tomorrow. (This is Llama 3.2's own
default.)"""


def plain_chat(messages: Messages) -> str:
    """Writes every message as "role: content", with a blank line between two messages."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def chosen_template(name: str, tokenizer: PreTrainedTokenizerFast | None) -> str | None:
    """Returns the text of the template that `dataset.chat_format=name` stands for; None is the plain form.

    Raises ValueError if a template is asked for and the tokenizer has none. (A tokenizer of None is yet to be
    trained.)
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


def make_chat_format(name: str, tokenizer: PreTrainedTokenizerFast | None) -> ChatFormat:
    """Returns a function from a conversation to a document. Raises what `chosen_template` raises."""
    template = chosen_template(name, tokenizer)
    if template is None or tokenizer is None:
        return plain_chat
    return partial(_apply_template, tokenizer, template)


def _apply_template(tokenizer: PreTrainedTokenizerFast, template: str, messages: Messages) -> str:
    from jinja2 import TemplateError

    conversation = [dict(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            conversation, chat_template=template, tokenize=False, date_string=TEMPLATE_DATE
        )
    except TemplateError as error:
        raise ValueError(
            f"dataset.chat_format=template: {tokenizer.name_or_path} refuses a conversation ({error}); use "
            "dataset.chat_format=plain"
        ) from error
    return str(text)
