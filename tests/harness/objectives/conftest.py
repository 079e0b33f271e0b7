"""Small data for every objective."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from objective_data import WORDS, as_examples, questions, sentences, written

from gradwire.harness.data.corpus import Corpus
from gradwire.harness.data.embedded import EmbeddedImages
from gradwire.harness.data.images import ImageData, read_images, write_images
from gradwire.harness.data.packing import write_packed
from gradwire.harness.data.token_data import TokenData, read_data
from gradwire.harness.data.tokenizer import trained_tokenizer


@pytest.fixture(scope="session")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    draw = random.Random(0)
    documents = [" ".join(draw.choices(WORDS, k=draw.randint(1, 200))) for _ in range(60)]
    corpus = Corpus("words", documents[:50], documents[50:], "by hand")
    folder = tmp_path_factory.mktemp("text")
    write_packed(folder, corpus, trained_tokenizer(documents, 300, tmp_path_factory.mktemp("cache")), 32)
    return read_data(folder, mask_probability=0.15)


@pytest.fixture(scope="session")
def choice_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return written(
        tmp_path_factory.mktemp("choice"), as_examples(questions(40), questions(17, seed=1)), length=96
    )


@pytest.fixture(scope="session")
def image_data(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    """Images half as large as the originals, so that scaling is tested, too."""
    folder, images = tmp_path_factory.mktemp("images"), EmbeddedImages().load()
    few = replace(images, train=list(images.train)[:40], held_out=list(images.held_out)[:17])
    write_images(folder, few, 8, None)
    return read_images(folder, augment=True)


@pytest.fixture(scope="session")
def labelled_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    examples = as_examples(sentences(40), sentences(17, seed=1), ("without", "with"), "matthews")
    return written(tmp_path_factory.mktemp("labelled"), examples)
