"""The interface by which a rank's backend connects."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from training_jobs import tiny_run

from gradwire.harness.launch.worker import _enter_network
from gradwire.harness.network.settings import ShapedConfig, UnpacedConfig
from gradwire.harness.network.shaped.namespace import Entrance

NAME = "GLOO_SOCKET_IFNAME"


@pytest.mark.parametrize("before", [None, "eth7"])
@pytest.mark.parametrize(
    ("entrance", "network", "backend", "after"),
    [
        (None, "none", "gloo", "lo or given"),
        (None, "none", "nccl", "given"),
        (Entrance("/namespace", "link3"), "shaped", "gloo", "link3"),
        (Entrance("/namespace", "link3"), "shaped", "nccl", "link3"),
        (None, "shaped", "gloo", "refused"),
        (None, "shaped", "nccl", "refused"),
    ],
)
def test_a_rank_connects_by_its_networks_interface(
    entrance: Entrance | None,
    network: str,
    backend: str,
    after: str,
    before: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[Entrance] = []
    monkeypatch.setattr(Entrance, "enter", lambda self: entered.append(self))
    monkeypatch.setattr(os, "environ", {} if before is None else {NAME: before})
    cluster = replace(tiny_run("cluster.workers=2").cluster, backend=backend)
    links = ShapedConfig() if network == "shaped" else UnpacedConfig()
    if after == "refused":
        with pytest.raises(ValueError, match="network=shaped has no links here; use network=none"):
            _enter_network(cluster, links, entrance)
    else:
        _enter_network(cluster, links, entrance)
        expected = {"lo or given": before or "lo", "given": before}.get(after, after)
        assert os.environ.get(NAME) == expected
    assert entered == ([] if entrance is None else [entrance])
