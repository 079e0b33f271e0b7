"""Names of runs by what differs: SDP4Bit's strategies, as its presets make them, and labels in words."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.explain import plain
from gradwire.harness.report.configs import flatten, labels, labels_in_words, strategy

NAMES = {
    "sharded_baseline": "baseline",
    "qw": "qW",
    "qwd": "qWD",
    "ulq": "ULq",
    "tlq": "TLq",
    "tlq_hs": "TLq-HS",
    "sdp4bit": "SDP4Bit",
    "zeropp": "ZeRO++",
}


def settings(*overrides: str) -> dict[str, object]:
    config = compose(["size=tiny", *overrides], named_by_user=False)
    return flatten({group: plain(config, group) for group in ("codec", "parallel")})


@pytest.mark.parametrize("experiment", NAMES)
def test_presets_have_the_papers_names(experiment: str) -> None:
    assert strategy(settings(f"experiment={experiment}")) == NAMES[experiment]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("parallel=sharded", "codec=dynamiq"),
        ("experiment=tlq", "codec.bits_node=8"),
        ("experiment=qw", "parallel.weight_bits=8"),
    ],
)
def test_others_have_none(overrides: tuple[str, ...]) -> None:
    assert strategy(settings(*overrides)) is None


def test_labels_add_what_differs_within_a_strategy() -> None:
    configs = [
        settings("experiment=sharded_baseline"),
        settings("experiment=qw", "parallel.weight_group=32"),
        settings("experiment=qw"),
        settings("experiment=zeropp"),
    ]
    assert labels(configs) == ["baseline", "qW weight_group=32", "qW weight_group=2048", "ZeRO++"]
    assert labels_in_words(configs) == ["no compression", "qW, groups of 32", "qW, groups of 2048", "ZeRO++"]
    assert labels([*configs, settings("codec=dynamiq")])[-1].startswith("dynamiq")


CHOSEN = {"codec.name": "dynamiq", "codec.bits": 5, "model.name": "gemma1b", "topology.name": "ring"}
LINKS = {"network.name": "simulated", "network.rate_mbit": 100, "overlap.enabled": True}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"codec.bits": 3}, ["DynamiQ, 5 bits", "DynamiQ, 3 bits"]),
        ({"codec.bits": "auto"}, ["DynamiQ, 5 bits", "DynamiQ, bits auto"]),
        ({"codec.floor": "own"}, ["DynamiQ", "DynamiQ, floor own"]),
        ({"model.name": "gpt_2_5b"}, ["DynamiQ, Gemma 1B", "DynamiQ, GPT-2.5B"]),
        (
            {"network.rate_mbit": 2500},
            ["DynamiQ, modelled links, 100 Mbit/s", "DynamiQ, modelled links, 2.5 Gbit/s"],
        ),
        ({"overlap.enabled": False}, ["DynamiQ, sent during backward", "DynamiQ, sent after backward"]),
        (
            {"codec.group_rows": None, "codec.bits": 4},
            ["DynamiQ, 5 bits", "DynamiQ, 4 bits, group rows none"],
        ),
    ],
)
def test_pictures_name_what_differs_in_words(change: dict[str, Any], words: list[str]) -> None:
    configs = [CHOSEN | LINKS, CHOSEN | LINKS | change]
    assert labels_in_words(configs) == words


def test_words_that_do_not_tell_apart_are_not_used() -> None:
    configs = [CHOSEN, CHOSEN | {"codec.name": "DynamiQ"}]
    assert labels_in_words(configs) == labels(configs) == ["dynamiq", "DynamiQ"]
