"""Examples as padded rows of tokens: encoding, truncation and writing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.harness.data.corpus import Tally, digest_of, hash_value
from gradwire.harness.data.examples import (
    LETTERS,
    Example,
    Examples,
    LabelledText,
    Question,
    answer_of,
    as_text,
    prompt_of,
)
from gradwire.harness.data.packing import PreparationProgress
from gradwire.harness.data.row_writer import RowWriter
from gradwire.harness.data.token_data import Split, column_file
from gradwire.harness.data.tokenizer import separator_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class EncodedExample:
    """The tokens of one example, its further columns, and whether it was truncated."""

    tokens: list[int]
    columns: Mapping[str, int]
    cut: bool


Encode = Callable[[Sequence[Example]], list[EncodedExample]]
"""Encodes several examples at once."""

PROBE = "Answer:"


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens of answers: the text between a prompt and the last token, and the last token for each
    letter."""

    between: str
    letters: list[int]


def answer_tokens(tokenizer: PreTrainedTokenizerFast, most_choices: int) -> AnswerTokens:
    """The tokens that distinguish answers: the last one of "Answer: A", "Answer: B" and so on.

    In a small vocabulary " A" may be one token and " D" two. Then the space and the letter are always
    separate tokens. Raises ValueError if the letters are not tokens either.
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

    A question that is too long is truncated at its beginning, because the choices and "Answer:" are at the
    end. Special tokens that the tokenizer itself puts in front (Llama's, Gemma's) are kept, as in lm-eval.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, length: int, answers: AnswerTokens) -> None:
        self._tokenizer, self._length, self._answers = tokenizer, length, answers
        self._front = _encode(tokenizer, [""])[0]

    def __call__(self, questions: Sequence[Question]) -> list[EncodedExample]:
        encoded = self._prompts([prompt_of(question) for question in questions])
        return [self._row(tokens, question) for tokens, question in zip(encoded, questions, strict=True)]

    def _prompts(self, prompts: list[str]) -> list[list[int]]:
        """The tokens of each row except the last one."""
        if self._answers.between:
            return _encode(self._tokenizer, [prompt + self._answers.between for prompt in prompts])
        # The tokens before the letter are the same for every letter.
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
    """Truncates the longer sentence at its end, one token at a time, until both fit into `room`."""
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


EXAMPLES_AT_ONCE = 1000
SHORTEST = 8
"""Tokens that a row needs to hold at least a part of an example."""


def write_examples(
    folder: Path,
    examples: Examples[Any],
    tokenizer: PreTrainedTokenizerFast,
    sequence_length: int,
    max_held_out: int | None,
    max_train_tokens: int | None = None,
) -> None:
    """Writes examples to `folder` in the form that `read_data` reads.

    `max_held_out` examples are taken evenly from the held-out split, because files are often sorted by
    subject; `max_train_tokens` does not count padding and takes the first examples. Examples of the held-out
    split, and copies of them, are never trained on. Raises ValueError, in one line, if a split is empty.
    """
    if sequence_length < SHORTEST:
        raise ValueError(
            f"dataset.sequence_length={sequence_length}: rows of examples need at least {SHORTEST} tokens"
        )
    known, all_held_out = dict[str, Any](), list(examples.held_out)
    if examples.labels:
        known["labels"] = list(examples.labels)
        encode: Encode[Any] = SentenceEncoder(tokenizer, sequence_length)
    else:
        most_choices = max((len(asked.choices) for asked in chain(all_held_out, examples.train)), default=2)
        answers = answer_tokens(tokenizer, most_choices)
        known["answer_tokens"] = answers.letters
        encode = QuestionEncoder(tokenizer, sequence_length, answers)
    held_out = SplitWriter(folder, "held_out", tokenizer, sequence_length)
    held_out.write(_spread(all_held_out, max_held_out), encode, examples.name)
    train = SplitWriter(folder, "train", tokenizer, sequence_length, max_train_tokens)
    never = {hash_value(as_text(example)) for example in all_held_out}
    train.write(examples.train, encode, examples.name, never=never)
    for split in (train, held_out):
        if not split.tally.num_documents:
            raise ValueError(
                f"dataset: {examples.name} has no examples for the {split.split} split; use more data"
            )
    tokenizer.save_pretrained(folder / "tokenizer")
    description = {
        "corpus": examples.name,
        "sha256": digest_of(train=train.tally, held_out=held_out.tally),
        "bytes": train.tally.num_bytes + held_out.tally.num_bytes,
        "split": examples.split,
        **train.described(),
        **held_out.described(),
        "left_out_of_train": train.left_out,
        "majority_accuracy": held_out.largest_share(),
        "metric": examples.metric,
        "vocab_size": len(tokenizer),
        "sequence_length": sequence_length,
        **known,
    }
    (folder / "description.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


class SplitWriter:
    """Writes one split of examples: its rows, padded on the right, and their columns."""

    def __init__(
        self,
        folder: Path,
        split: Split,
        tokenizer: PreTrainedTokenizerFast,
        row_length: int,
        most_tokens: int | None = None,
    ) -> None:
        self.split, self._folder, self._row_length = split, folder, row_length
        self._most_tokens = most_tokens
        own = tokenizer.pad_token_id
        self._pad = own if isinstance(own, int) else separator_id(tokenizer)
        self.tally, self.left_out = Tally(), 0
        self._num_cut = self._num_tokens = 0
        self._columns: dict[str, list[int]] = {}
        self._answers = Counter[int]()

    def write(
        self, examples: Iterable[Example], encode: Encode[Example], name: str, never: Container[int] = ()
    ) -> None:
        """Writes all examples, up to the limit on tokens, except those whose hash is in `never`."""
        progress = PreparationProgress(f"{name}, {self.split} split", self._most_tokens)
        with RowWriter(self._folder / f"{self.split}.npy", self._row_length) as rows:
            for batch in _batches(self._allowed(examples, never)):
                for example, encoded in zip(batch, encode(batch), strict=True):
                    if self._most_tokens is not None and self._num_tokens >= self._most_tokens:
                        break
                    self._add(example, encoded, rows)
                progress.show(self.tally.num_documents, self._num_tokens)
        for column, values in self._columns.items():
            np.save(column_file(self._folder, self.split, column), np.array(values, dtype=np.int32))

    def _allowed(self, examples: Iterable[Example], never: Container[int]) -> Iterator[Example]:
        for example in examples:
            if hash_value(as_text(example)) in never:
                self.left_out += 1
            else:
                yield example

    def _add(self, example: Question | LabelledText, encoded: EncodedExample, rows: RowWriter) -> None:
        rows.append([*encoded.tokens, *[self._pad] * (self._row_length - len(encoded.tokens))])
        for name, value in encoded.columns.items():
            self._columns.setdefault(name, []).append(value)
        self._num_cut += encoded.cut
        self._num_tokens += len(encoded.tokens)
        self._answers[example.answer if isinstance(example, Question) else example.label] += 1
        self.tally.add(as_text(example))

    def described(self) -> dict[str, int]:
        """The number of examples, of tokens, and of truncated examples."""
        return {
            f"{self.split}_examples": self.tally.num_documents,
            f"{self.split}_tokens": self._num_tokens,
            f"{self.split}_cut": self._num_cut,
        }

    def largest_share(self) -> float:
        """The accuracy of always giving the most frequent answer."""
        return max(self._answers.values()) / self._answers.total()


def _spread(examples: Sequence[Example], most: int | None) -> Sequence[Example]:
    """The examples, or `most` of them at equal distances."""
    if most is None or len(examples) <= most:
        return examples
    return [examples[index * len(examples) // most] for index in range(most)]


def _batches(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while batch := list(islice(examples, EXAMPLES_AT_ONCE)):
        yield batch
