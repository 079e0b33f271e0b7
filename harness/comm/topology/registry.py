"""All topologies by name, and the nodes of a run's ranks where its topology depends on them.

A new topology is one entry here, one file in this folder, one YAML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import cast

from gradwire.codecs.plugins import find
from gradwire.harness.comm.nodes import one_node_refusal, ranks_per_node
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.topology.broadcast import broadcast
from gradwire.harness.comm.topology.butterfly import butterfly
from gradwire.harness.comm.topology.check import check_schedule
from gradwire.harness.comm.topology.ring import ring
from gradwire.harness.comm.topology.schedule import Schedule, Topology, knows_nodes, made_for
from gradwire.harness.comm.topology.two_level import two_level
from gradwire.harness.network.settings import NetworkConfig

TOPOLOGIES: dict[str, Topology] = {
    "ring": ring,
    "butterfly": butterfly,
    "broadcast": broadcast,
    "two_level": two_level,
}


def make_schedule(name: str, size: int, num_nodes: int = 1) -> Schedule:
    """The schedule of topology `name` over `size` ranks on `num_nodes` nodes. Raises ValueError if the
    topology does not support them."""
    made = topology(name)
    if size < 1:
        raise ValueError(f"cluster.workers={size} must be at least 1")
    return made_for(made, size, num_nodes)


def topology(name: str) -> Topology:
    """Returns the topology of a name: one of `TOPOLOGIES`, or a plug-in, see `gradwire.codecs.plugins`.

    A plug-in's schedules are verified by executing them on sets of ranks before they are used. Raises
    ValueError for an unknown name.
    """
    return find("topology", name, TOPOLOGIES, "<module>:<function>", _checked)


def depends_on_nodes(name: str) -> bool:
    """True if the schedules of topology `name` depend on the number of nodes. Raises ValueError for an
    unknown name."""
    made = topology(name)
    return knows_nodes(made.args[0] if isinstance(made, partial) else made)


def _checked(found: object, name: str) -> Topology:
    if not callable(found) or isinstance(found, type):
        raise ValueError(
            f"topology={name} is not a topology: it must be a function from world size to Schedule"
        )
    return partial(_proven, found, name)


@lru_cache(maxsize=64)
def _proven(function: Callable[..., object], name: str, size: int, num_nodes: int = 1) -> Schedule:
    """Returns the schedule that `function` makes for `size` ranks. Raises ValueError unless it is a correct
    all-reduce."""
    given = f"topology={name} with cluster.workers={size}"
    try:
        schedule: object = made_for(cast(Topology, function), size, num_nodes)
        if not isinstance(schedule, Schedule):
            raise ValueError(f"it returned {type(schedule).__name__}, not a gradwire Schedule")
        if schedule.size != size or len(schedule.ranks) != size:
            raise ValueError(f"its schedule is for {schedule.size} ranks")
        check_schedule(schedule)
    except ValueError as error:
        raise ValueError(f"{given}: {_line(error)}") from error
    except AssertionError as error:
        raise ValueError(f"{given} is not a correct all-reduce: {_line(error)}") from error
    except Exception as error:
        raise ValueError(f"{given}: {type(error).__name__}: {_line(error)}") from error
    return schedule


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def placed(
    cluster: ClusterConfig,
    network: NetworkConfig | None,
    topology: str,
    environment: Mapping[str, str] = os.environ,
) -> ClusterConfig:
    """`cluster` with `ranks_per_node` filled in if `topology` depends on it, because it is then part of the
    run's id.

    Raises ValueError as `ranks_per_node` does, and if such a topology is used on a single node, where it
    would be a different one. A launcher's ranks first compare their settings (`check_launched_nodes`),
    because each rank only knows its own machine.
    """
    local = ranks_per_node(cluster, network, environment)
    if not depends_on_nodes(topology):
        return cluster
    if local == cluster.size > 1 and cluster.ranks_per_node is None:
        if "RANK" in environment and cluster.name == "local":
            return cluster
        raise ValueError(one_node_refusal(topology, cluster.size))
    return replace(cluster, ranks_per_node=local)
