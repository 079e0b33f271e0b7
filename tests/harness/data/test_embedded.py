"""The text that comes with Python: enough of it, the same in every process."""

import hashlib
import inspect
import os
import subprocess
import sys
import textwrap

import pytest

from gradwire.harness.data import embedded
from gradwire.harness.data.embedded import EmbeddedCorpus

PRINT_IDENTITY = (
    "import hashlib, sys\n"
    "from gradwire.harness.data.embedded import EmbeddedCorpus\n"
    "corpus = EmbeddedCorpus()\n"
    "splits = corpus.load()\n"
    "text = repr([*splits.train, *splits.held_out])\n"
    "print(corpus.fingerprint(), hashlib.sha256(text.encode()).hexdigest())\n"
    "assert not {'antigravity', 'turtledemo', 'this', 'sqlite3'} & set(sys.modules)"
)


@pytest.fixture(scope="module")
def splits():
    corpus = EmbeddedCorpus().load()
    return list(corpus.train), list(corpus.held_out)


def test_it_is_at_least_a_megabyte_in_hundreds_of_documents(splits):
    train, held_out = splits
    assert sum(len(document.encode()) for document in train + held_out) > 1_500_000
    assert len(train) > 400
    assert 0.04 < len(held_out) / (len(train) + len(held_out)) < 0.07
    assert not set(train) & set(held_out)
    assert all(document.strip() for document in train + held_out)


def test_it_holds_topics_and_docstrings_in_source_order(splits):
    documents = splits[0] + splits[1]
    assert any("Boolean operations" in document and "or_test" in document for document in documents)
    document = next(text for text in documents if text.startswith(inspect.getdoc(textwrap)))
    parts = [inspect.getdoc(textwrap.TextWrapper.fill), inspect.getdoc(textwrap.dedent)]
    places = [document.index(part) for part in parts]
    assert places == sorted(places)


def test_it_is_the_same_in_every_process_and_imports_no_library_module(splits):
    digest = hashlib.sha256(repr([*splits[0], *splits[1]]).encode()).hexdigest()
    hash_seed = {"PYTHONHASHSEED": "1"}  # ours, if none is set, is random
    done = subprocess.run(
        [sys.executable, "-c", PRINT_IDENTITY],
        env=os.environ | hash_seed,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [EmbeddedCorpus().fingerprint(), digest]


def test_a_megabyte_of_text_is_enough(monkeypatch):
    documents = [f"Document {number} of some text.\n" * 50 for number in range(40)]
    monkeypatch.setattr(embedded, "topics", lambda: documents)
    monkeypatch.setattr(embedded, "_docstring_documents", list)
    there = sum(len(document.encode()) for document in documents)
    for least in (there - 1, there, there + 1):
        monkeypatch.setattr(embedded, "LEAST_BYTES", least)
        if least > there:
            with pytest.raises(ValueError, match=f"this Python has only {there} bytes of text"):
                EmbeddedCorpus().load()
        else:
            found = EmbeddedCorpus().load()
            assert len(list(found.train)) + len(list(found.held_out)) == 40


def test_a_python_without_sources_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "_library", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"dataset=embedded: .* use dataset.path=") as refusal:
        EmbeddedCorpus().load()
    assert "\n" not in str(refusal.value)
