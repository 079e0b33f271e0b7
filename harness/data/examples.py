"""Examples, i.e. questions with choices and labelled sentences, for data sets whose rows are not running
text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Kind = Literal["documents", "questions", "sentences", "images"]
"""The kinds of data: running text, multiple-choice questions, sentences or images with a label."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The names of choices, in their order."""


@dataclass(frozen=True)
class Question:
    """A multiple-choice question; `answer` is the index of the right choice."""

    question: str
    choices: tuple[str, ...]
    answer: int
    subject: str = ""


@dataclass(frozen=True)
class LabelledText:
    """One sentence or a pair of them; `label` is an index into the data set's labels."""

    first: str
    second: str | None
    label: int


Example = TypeVar("Example", Question, LabelledText)


@dataclass(frozen=True)
class Examples(Generic[Example]):
    """The examples of a data set in a fixed order, which allows several passes."""

    name: str
    train: Iterable[Example]
    held_out: Iterable[Example]
    split: str
    """The files or splits that the examples come from, for the record."""
    metric: str
    """The data set's own metric: a key of METRICS."""
    labels: tuple[str, ...] = field(default=())
    """The names of the labels of sentences; empty for questions."""


def prompt_of(question: Question) -> str:
    """The question in the form of a prompt; the answer follows after a space: see `answer_of`."""
    choices = [f"{LETTERS[index]}. {choice.strip()}" for index, choice in enumerate(question.choices)]
    return "\n".join([question.question.strip(), *choices, "Answer:"])


def answer_of(index: int) -> str:
    """The text that follows a prompt if the choice at `index` is right."""
    return f" {LETTERS[index]}"


def as_text(example: Question | LabelledText) -> str:
    """The whole example as text, used to train tokenizers and to find copies."""
    if isinstance(example, Question):
        return prompt_of(example) + answer_of(example.answer)
    return "\n".join(filter(None, (example.first, example.second)))
