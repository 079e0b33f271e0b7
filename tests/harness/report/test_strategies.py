"""SDP4Bit's names of strategies, as its presets make them."""

from __future__ import annotations

import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.explain import plain
from gradwire.harness.report.configs import flatten, labels, strategy

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
    assert labels([*configs, settings("codec=dynamiq")])[-1].startswith("dynamiq")
