"""All topologies by name. A new topology is one entry here, one file beside this one, one YAML."""

from __future__ import annotations

from gradwire.harness.topology.broadcast import broadcast
from gradwire.harness.topology.butterfly import butterfly
from gradwire.harness.topology.ring import ring
from gradwire.harness.topology.schedule import Schedule, Topology

TOPOLOGIES: dict[str, Topology] = {"ring": ring, "butterfly": butterfly, "broadcast": broadcast}


def make_schedule(name: str, size: int) -> Schedule:
    """The schedule of topology `name` over `size` ranks; ValueError if either is not allowed."""
    if name not in TOPOLOGIES:
        raise ValueError(f"topology={name} is unknown; choose one of {', '.join(sorted(TOPOLOGIES))}")
    if size < 1:
        raise ValueError(f"cluster.workers={size} must be at least 1")
    return TOPOLOGIES[name](size)
