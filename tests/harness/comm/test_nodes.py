"""`cluster.ranks_per_node`: what null means, what is refused, and that every world learns of its nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.nodes import check_launched_nodes, local_world, num_nodes, ranks_per_node
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.topology.registry import depends_on_nodes
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.network.settings import PacedConfig, SimulatedConfig
from gradwire.harness.record.identity import run_id
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.allreduce import rounds
from gradwire.harness.studies.replay.study import STUDY as REPLAY
from gradwire.harness.trainer.parts import build_world

LOCAL = ClusterConfig(name="local", workers=8)
NODES_OF_4 = SimulatedConfig("simulated", fabric="two_level", ranks_per_node=4, intra_rate_mbit=1e4)
TWO_LEVEL = (
    *("network=simulated", "network.fabric=two_level", "network.intra_rate_mbit=1e4"),
    *("network.ranks_per_node=2", "cluster.workers=4"),
)


def launched(local: str, rank: str = "0") -> dict[str, str]:
    return {"RANK": rank, "LOCAL_WORLD_SIZE": local}


@pytest.mark.parametrize(
    ("cluster", "network", "environment", "expected"),
    [
        (LOCAL, PacedConfig("paced"), {}, 8),
        (replace(LOCAL, ranks_per_node=2), PacedConfig("paced"), {}, 2),
        (LOCAL, None, launched("4"), 4),
        (LOCAL, None, launched("8"), 8),
        (LOCAL, None, launched("3"), 8),
        (LOCAL, None, {"LOCAL_WORLD_SIZE": "4"}, 8),
        (replace(LOCAL, ranks_per_node=2), None, launched("4"), 2),
        (replace(LOCAL, name="virtual"), None, launched("1"), 8),
        (replace(LOCAL, name="virtual"), NODES_OF_4, {}, 4),
        (replace(LOCAL, name="virtual", ranks_per_node=4), NODES_OF_4, {}, 4),
        (replace(LOCAL, name="virtual", ranks_per_node=2), SimulatedConfig("simulated"), {}, 2),
    ],
)
def test_null_is_the_networks_the_launchers_or_all(
    cluster: ClusterConfig, network: SimulatedConfig | None, environment: dict[str, str], expected: int
) -> None:
    assert ranks_per_node(cluster, network, environment) == expected


def test_a_launcher_that_does_not_tell_is_not_asked() -> None:
    assert [local_world(6, found) for found in ({}, {"RANK": "0"}, launched("x"), launched("0"))] == [
        None
    ] * 4
    assert (local_world(6, launched("2")), local_world(6, launched("4"))) == (2, None)


def test_ranks_that_were_told_different_things_are_refused() -> None:
    for told, topology in (
        ([(None, "2"), (None, "2")], None),
        ([(None, ""), (None, "")], None),
        ([(2, "4"), (2, "1"), (2, "")], None),
        ([(1, "1"), (1, "1")], "two_level"),
        ([(None, "1")], "two_level"),
    ):
        check_launched_nodes(told, topology)
    with pytest.raises(ValueError, match=r"ranks: 2 \(rank 0, 1\), 1 \(rank 2\); start as .*per_node=3: all"):
        check_launched_nodes([(None, "2"), (None, "2"), (None, "1")], None)
    with pytest.raises(ValueError, match=r"ranks: 2 \(rank 0\), unset \(rank 1\); start"):
        check_launched_nodes([(None, "2"), (None, "")], None)
    with pytest.raises(ValueError, match=r"ranks: 1 \(rank 0\), 2 \(rank 1\); start"):
        check_launched_nodes([(1, "1"), (None, "2")], "two_level")
    with pytest.raises(ValueError, match="topology=two_level: all cluster.workers=2 are on one node"):
        check_launched_nodes([(None, "2"), (None, "2")], "two_level")


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        validate_any(compose([*overrides]))
    return str(raised.value)


def test_what_contradicts_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "saved.npz"
    np.savez(file, gradients=np.ones((4, 8), np.float32))
    for task in (["size=tiny"], ["task=allreduce"]):
        text = refusal(*task, *TWO_LEVEL, "cluster.ranks_per_node=4")
        assert text.startswith("cluster.ranks_per_node=4 contradicts network.ranks_per_node=2; use")
    for task in (["size=tiny"], ["task=allreduce"], ["task=replay", f"gradients={file}"]):
        text = refusal(*task, "cluster.workers=4", "cluster.ranks_per_node=3")
        assert text.startswith("cluster.ranks_per_node=3 does not divide cluster.workers=4")
        assert text.endswith("use e.g. cluster.ranks_per_node=2")


def test_null_is_recorded_as_a_number_where_the_topology_depends_on_nodes() -> None:
    config = validate(compose(["size=tiny", "topology=two_level", *TWO_LEVEL]))
    assert config.cluster.ranks_per_node == 2
    given = validate(compose(["size=tiny", "topology=two_level", *TWO_LEVEL, "cluster.ranks_per_node=2"]))
    assert run_id(given) == run_id(config)
    assert [depends_on_nodes(name) for name in ("ring", "two_level")] == [False, True]


def test_every_world_learns_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    made: list[int] = []

    def noted(*args: Any, **options: Any) -> Fabric:
        made.append(options["num_nodes"])
        return Fabric(*args, **options)

    for module in ("trainer.parts", "studies.allreduce.rounds", "studies.replay.task"):
        monkeypatch.setattr(f"gradwire.harness.{module}.Fabric", noted)
    virtual = ("size=tiny", "cluster=virtual", "cluster.workers=4", "cluster.ranks_per_node=2")
    build_world(validate(compose([*virtual])), cpu)
    build_world(validate(compose(["size=tiny", *TWO_LEVEL])), cpu)
    small = ("task=allreduce", "allreduce.coordinates=9", "allreduce.repeats=1", "cluster=virtual")
    config = validate_any(compose([*small, "cluster.workers=4", "cluster.ranks_per_node=1", "codec=bf16"]))
    rounds.model(config, rounds.clock_for(config, None))
    file = tmp_path / "saved.npz"
    np.savez(file, gradients=np.ones((6, 8), np.float32))
    given = ("task=replay", f"gradients={file}", "cluster.ranks_per_node=3", "codec=bf16", "plots=false")
    REPLAY.run(validate_any(compose([*given])), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["workers"] == 6
    assert made == [2, 2, 4, 2]


def test_nodes_hold_consecutive_ranks() -> None:
    fabric = Fabric(lambda size: None, num_nodes=num_nodes(replace(LOCAL, ranks_per_node=2)))  # type: ignore
    assert fabric.num_nodes == 4
    assert fabric.mesh(8).group("local", 5) == (4, 5)
    assert fabric.mesh(8).group("node", 5) == (1, 3, 5, 7)
