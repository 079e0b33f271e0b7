"""Small data for every objective."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gradwire.harness.data.corpus import Corpus
from gradwire.harness.data.example_rows import write_examples
from gradwire.harness.data.examples import Examples, LabelledText, Question, as_text
from gradwire.harness.data.packing import write_packed
from gradwire.harness.data.token_data import TokenData, read_data
from gradwire.harness.data.tokenizer import trained_tokenizer

WORDS = ["gradient", "ring", "butterfly", "bucket", "worker", "sum", "of", "all", "the", "naïve"]


@pytest.fixture(scope="session")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    draw = random.Random(0)
    documents = [" ".join(draw.choices(WORDS, k=draw.randint(1, 200))) for _ in range(60)]
    corpus = Corpus("words", documents[:50], documents[50:], "by hand")
    folder = tmp_path_factory.mktemp("text")
    write_packed(
        folder, corpus, trained_tokenizer(documents, 300, tmp_path_factory.mktemp("cache")), 32, None
    )
    return read_data(folder, mask_probability=0.15)


def questions(number: int, seed: int = 0) -> list[Question]:
    """Questions of different lengths with three or four choices."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        choices = draw.sample(WORDS, k=draw.choice([3, 4]))
        text = " ".join(draw.choices(WORDS, k=draw.randint(2, 12)))
        found.append(Question(f"{text}?", tuple(choices), draw.randrange(len(choices))))
    return found


def sentences(number: int, seed: int = 0) -> list[LabelledText]:
    """Single sentences and pairs, labelled by whether "ring" is in the first."""
    draw = random.Random(seed)
    found = []
    for index in range(number):
        first, second = (" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(2))
        found.append(LabelledText(first, second if index % 3 == 0 else None, int("ring" in first)))
    return found


def written(folder: Path, examples: Examples, length: int = 64, **limits: int | None) -> TokenData:
    """The examples as training reads them."""
    tokenizer = trained_tokenizer(map(as_text, examples.train), 300, folder / "cache")
    write_examples(folder, examples, tokenizer, length, limits.get("held_out"), limits.get("tokens"))
    return read_data(folder, 0.15)


def as_examples(
    train: list, held_out: list, labels: tuple[str, ...] = (), metric: str = "accuracy"
) -> Examples:
    return Examples("by hand", train, held_out, "by hand", metric, labels)


@pytest.fixture(scope="session")
def choice_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return written(tmp_path_factory.mktemp("choice"), as_examples(questions(40), questions(17, seed=1)))


@pytest.fixture(scope="session")
def labelled_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    examples = as_examples(sentences(40), sentences(17, seed=1), ("without", "with"), "matthews")
    return written(tmp_path_factory.mktemp("labelled"), examples)
