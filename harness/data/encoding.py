"""Examples to tokens: what is put before and between sentences, and how long examples are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.harness.data.examples import (
    LETTERS,
    Example,
    LabelledText,
    Question,
    answer_of,
    prompt_of,
)
from gradwire.harness.data.tokenizer import separator_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class EncodedExample:
    """The tokens of one example, what else is known of it, and whether something of it was cut off."""

    tokens: list[int]
    columns: Mapping[str, int]
    cut: bool


Encode = Callable[[Sequence[Example]], list[EncodedExample]]
"""Encodes several examples at once."""

PROBE = "Answer:"


@dataclass(frozen=True)
class AnswerTokens:
    """How answers end: the text between a prompt and the last token, and that token for each letter."""

    between: str
    letters: list[int]


def answer_tokens(tokenizer: PreTrainedTokenizerFast, most_choices: int) -> AnswerTokens:
    """The tokens that tell answers apart: the last one of "Answer: A", "Answer: B" and so on.

    A small vocabulary has " A" as one token and " D" as two. With such a one the space and the letter are
    always two. Raises ValueError if the letters are no tokens either.
    """
    encoded = _encode(tokenizer, [PROBE + answer_of(index) for index in range(most_choices)])
    if len({tuple(tokens[:-1]) for tokens in encoded}) == 1:
        return AnswerTokens("", [tokens[-1] for tokens in encoded])
    alone = _encode(tokenizer, list(LETTERS[:most_choices]), special=False)
    if any(len(tokens) != 1 for tokens in alone):
        raise ValueError(
            f"model.objective=choice: the tokenizer {tokenizer.name_or_path} does not end the answers A, B, "
            "... in one token each; use model.weights=random or another tokenizer"
        )
    return AnswerTokens(" ", [tokens[0] for tokens in alone])


class QuestionEncoder:
    """Rows that end in the letter of the answer.

    A question that is too long loses its beginning: the choices and "Answer:" stand at the end. The special
    tokens that the tokenizer itself puts in front (Llama's, Gemma's) stay, as lm-eval has them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, length: int, answers: AnswerTokens) -> None:
        self._tokenizer, self._length, self._answers = tokenizer, length, answers
        self._front = _encode(tokenizer, [""])[0]

    def __call__(self, questions: Sequence[Question]) -> list[EncodedExample]:
        encoded = self._prompts([prompt_of(question) for question in questions])
        return [self._row(tokens, question) for tokens, question in zip(encoded, questions, strict=True)]

    def _prompts(self, prompts: list[str]) -> list[list[int]]:
        """The tokens of each row but the last one."""
        if self._answers.between:
            return _encode(self._tokenizer, [prompt + self._answers.between for prompt in prompts])
        # Whichever letter stands at the end, the tokens before it are the same.
        return [tokens[:-1] for tokens in _encode(self._tokenizer, [text + answer_of(0) for text in prompts])]

    def _row(self, tokens: list[int], question: Question) -> EncodedExample:
        room = self._length - 1
        cut = len(tokens) > room
        if cut:
            tokens = self._front + tokens[len(tokens) - room + len(self._front) :]
        row = [*tokens, self._answers.letters[question.answer]]
        return EncodedExample(row, {"length": len(row), "choices": len(question.choices)}, cut)


class SentenceEncoder:
    """Rows of the form start, sentence, separator, and of pairs a second sentence and separator (BERT §3).

    The start is the tokenizer's classification token, else the separator. Of a pair that is too long the
    longer sentence loses its last token until both fit, as in BERT.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        self._tokenizer, self._length = tokenizer, length
        own = tokenizer.sep_token_id
        self._separator = own if isinstance(own, int) else separator_id(tokenizer)
        start = tokenizer.cls_token_id
        self._start = start if isinstance(start, int) else self._separator

    def __call__(self, texts: Sequence[LabelledText]) -> list[EncodedExample]:
        firsts = _encode(self._tokenizer, [text.first for text in texts], special=False)
        seconds = _encode(self._tokenizer, [text.second or "" for text in texts], special=False)
        return [self._row(*parts) for parts in zip(firsts, seconds, texts, strict=True)]

    def _row(self, first: list[int], second: list[int], text: LabelledText) -> EncodedExample:
        is_pair = text.second is not None
        room = self._length - (3 if is_pair else 2)
        cut = len(first) + len(second) > room
        first, second = _shortened(first, second, room)
        tokens = [self._start, *first, self._separator]
        begins = len(tokens)
        if is_pair:
            tokens += [*second, self._separator]
        return EncodedExample(tokens, {"length": len(tokens), "second": begins, "label": text.label}, cut)


def _shortened(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """The longer one is cut at its end, one token at a time, until both fit into `room`."""
    over = len(first) + len(second) - room
    if over <= 0:
        return first, second
    longer_by = len(first) - len(second)
    alone = min(over, abs(longer_by))  # of the longer one, until both are equally long
    both = over - alone
    of_first = (alone if longer_by > 0 else 0) + (both + 1) // 2
    of_second = over - of_first
    return first[: len(first) - of_first], second[: len(second) - of_second]


def _encode(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], *, special: bool = True
) -> list[list[int]]:
    encoded: list[list[int]] = tokenizer(
        list(texts),
        add_special_tokens=special,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # what is too long for the model is cut here
    )["input_ids"]
    return encoded
