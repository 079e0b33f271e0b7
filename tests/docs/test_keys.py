"""Keys, choices, names and files in the prose of the documentation exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from keys import wrong_word
from pages import PAGES, ROOT, name, prose, spans

FRONT = ROOT / "README.md"


def wrong_words(page: Path, text: str) -> list[str]:
    """The faults of all inline code in `text`, word by word; in Python code only our names are looked at."""
    words: dict[str, None] = {}
    for span in spans(text):
        found = re.findall(r"gradwire\.[\w.]+", span) if "(" in span else span.split()
        words |= dict.fromkeys(word.strip("'\",") for word in found)
    return [fault for fault in (wrong_word(word, page) for word in words) if fault is not None]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_prose_names_what_there_is(page: Path) -> None:
    assert not wrong_words(page, prose(page))


@pytest.mark.parametrize(
    "planted",
    [
        "codec.bitz",
        "train.max_skiped=20",
        "model.recipe.learning",
        "codec=dynamic",
        "codec=bf16,dynamic",
        "cluster.gradients=memory|disc",
        "resume=maybe",
        "sead=1",
        "network.jitter=1.5",
        "replay.round=3",
        "hydra.run.dri",
        "gradwire.atach",
        "gradwire.harness.nothing",
        "harness/no_such_file.py",
        "conf/codec/dynamic.yaml",
    ],
)
def test_planted_mistakes_are_found(planted: str) -> None:
    assert len(wrong_words(FRONT, f"Set `{planted}`.")) == 1


@pytest.mark.parametrize(
    "right",
    [
        "codec.bits=4",
        "model.recipe.lr",
        "codec=bf16,dynamiq",
        "cluster.gradients=memory|disk",
        "network.codec_times=<folder>",
        "resume=force",
        "run=outputs/<run>",
        "replay.rounds",
        "hydra.run.dir=",
        "gradwire.attach(model, codec=\"dynamiq\")",
        "codecs/interface.py",
        "conf/codec/<name>.yaml",
        "steps.jsonl",
        "run.json",
    ],
)  # fmt: skip
def test_what_is_right_is_let_through(right: str) -> None:
    assert not wrong_words(FRONT, f"Set `{right}`.")
