"""The front page's table of what works with what agrees with the registries and the command line's checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from commands import well_equipped_machine
from omegaconf import DictConfig
from pages import ROOT, spans

import gradwire
from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.library.options import AttachOptions, check_runs, make_options
from gradwire.harness.network.settings import NETWORKS
from gradwire.harness.parallel.registry import PARALLELISMS
from gradwire.harness.report.catalogue import MADE_BY, codec_groups, with_codec_rows
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError

WORLDS = ("local", "virtual")
NETWORK_CHOICES = sorted(file.stem for file in (conf_directory() / "network").glob("*.yaml"))
OWN_CODECS = sorted(name for name, made in codec_classes().items() if made.__module__.startswith("gradwire."))


@cache
def rows() -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    """Each row's kind, the names it is about, and its answers for `local`, `virtual` and `attach`."""
    table = (ROOT / "README.md").read_text().partition("## What works with what")[2].partition("\n## ")[0]
    found = []
    for line in table.splitlines():
        if kind := re.match(r"\| \*\*(\w+)\*\* `", line):
            first, *answers = line.strip("| ").split(" | ")
            found.append((kind[1], tuple(spans(first.partition(" (")[0])), tuple(answers)))
    return tuple(found)


def codec_topologies() -> dict[str, list[str]]:
    """The topologies of the codecs for which the table names some."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"\*\*codec\*\* `(\w+)` \(on (.*?) only\)", text)
    found += re.findall(r"\*\*codec\*\* `(\w+)` \(with `parallel=blocks` on a (`broadcast`)\)", text)
    return {name: spans(given) for name, given in found}


def answers(kinds: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Name to answers."""
    return {name: given for kind, names, given in rows() if kind in kinds for name in names}


@cache
def composed(network: str, codec: str = "bf16") -> DictConfig:
    return compose(["size=tiny", "cluster.workers=4", f"network={network}", f"codec={codec}"])


def works(world: str, network: str, codec: str = "bf16") -> bool:
    config = composed(network).copy()
    config.codec = composed("none", codec).codec
    config.cluster.name = world
    try:
        with well_equipped_machine():
            validate(config)
    except ConfigError:
        return False
    return True


def test_codecs_stand_in_their_groups() -> None:
    """A row for each group, in the order of the docs; codecs that do not work everywhere have their own."""
    table = (ROOT / "README.md").read_text().partition("## What works with what")[2]
    found = re.findall(r"\| \*\*codecs\*\* .*? \((.*?)\) \|", table)
    assert found == [group for group in codec_groups() if group in found]
    assert with_codec_rows(table) == table, f"run: python -m {MADE_BY}"


def test_the_table_names_everything_there_is() -> None:
    assert sorted(answers(("codec", "codecs"))) == OWN_CODECS
    assert sorted(answers(("topologies",))) == sorted(TOPOLOGIES)
    assert sorted(answers(("parallelism",))) == sorted(PARALLELISMS)
    assert sorted(answers(("network",))) == NETWORK_CHOICES


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_run_where_the_table_says(network: str) -> None:
    given = answers(("network",))[network]
    for world, answer in zip(WORLDS, given, strict=False):
        assert answer.startswith(("yes", "no"))
        assert works(world, network) == answer.startswith("yes"), (network, world)
        if works(world, network) and world == "local":
            assert works(world, network, "backend") == ("not with `backend`" not in answer), network


def test_testbeds_are_simulated_networks() -> None:
    for network, given in answers(("network",)).items():
        if network not in NETWORKS:
            assert given == answers(("network",))["simulated"]
            text = (conf_directory() / "network" / f"{network}.yaml").read_text()
            assert re.search(r"^  - (.*/)?simulated", text, re.MULTILINE), network


def test_codecs_run_where_the_table_says() -> None:
    layout = Layout(("w",), ((1024, 1024),), (0,), 1 << 20)
    for name, given in answers(("codec", "codecs")).items():
        expected = {"backend": ("yes", "no", "yes"), "aqgb": ("yes", "yes", "no")}
        assert given == expected.get(name, ("yes", "yes", "yes"))
        assert (make_codec(name).supports_stages(1) is None) == (given[2] == "yes")
        assert make_codec(name).traits.uses_backend == (name == "backend")
        for topology in TOPOLOGIES:
            runs = [make_codec(name).supports(topology, size, layout) is None for size in (2, 4, 7)]
            assert runs == [topology in codec_topologies().get(name, TOPOLOGIES)] * 3
    assert [works(world, "none", "backend") for world in WORLDS] == [True, False]


def test_attach_takes_what_the_table_says() -> None:
    assert answers(("network",))["paced"][2] == "`attach(…, rate_mbit=200)`, not with `backend`"
    assert "rate_mbit" in inspect.signature(gradwire.attach).parameters
    ring, device, options = (
        make_schedule("ring", 2),
        torch.device("cpu"),
        make_options(AttachOptions, rate_mbit=200.0),
    )
    check_runs(make_codec("fp32"), ring, device, options)
    with pytest.raises(ValueError, match="rate_mbit=200.0 has no effect with codec=backend"):
        check_runs(make_codec("backend"), ring, device, options)
