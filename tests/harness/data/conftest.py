"""A small corpus, its tokens, and where real data may lie."""

import random

import datasets
import pytest

from gradwire.harness.data.corpus import Corpus
from gradwire.harness.data.packing import write_packed
from gradwire.harness.data.token_data import TokenData, read_data
from gradwire.harness.data.tokenizer import trained_tokenizer

WORDS = [
    "gradient",
    "ring",
    "butterfly",
    "bucket",
    "worker",
    "naïve",
    "Größe",
    "梯度",
    "sum",
    "+=",
    "x[i];\n\tstep\r",
]
LENGTH = 32


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """Documents of 1 to 200 words, some longer and some shorter than a sequence."""
    choose = random.Random(0)
    documents = [" ".join(choose.choices(WORDS, k=choose.randint(1, 200))).strip() for _ in range(60)]
    return Corpus("words", tuple(documents[:50]), tuple(documents[50:]), "by hand")


@pytest.fixture(scope="session")
def data(corpus, tmp_path_factory) -> TokenData:
    folder = tmp_path_factory.mktemp("packed")
    tokenizer = trained_tokenizer(corpus.train, 300, tmp_path_factory.mktemp("cache"))
    write_packed(folder, corpus, tokenizer, LENGTH)
    return read_data(folder, mask_probability=0.15)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory for repositories, and a Hugging Face cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path
