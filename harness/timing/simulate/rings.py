"""The plan of a ring all-reduce without codec work, for any number of ranks, at once."""

from __future__ import annotations

import numpy as np

from gradwire.harness.timing.simulate.plan import POST, WAIT, Plan


def ring_plan(size: int, num_bytes: int) -> Plan:
    """What `topology=ring` does with one bucket of `num_bytes` over `size` ranks: 2(size − 1) hops of a
    chunk each, the chunks being of equal size, rounded up to whole bytes."""
    hops = 2 * (size - 1)
    posts = np.arange(size * hops)
    return Plan(
        kinds=np.tile(np.array([POST, WAIT]), len(posts)),
        values=np.repeat(posts, 2),
        first_operations=np.arange(size + 1) * (2 * hops),
        ranks=np.arange(size),
        first_tasks=np.arange(size + 1),
        thread_tasks=np.arange(size),
        num_posts=len(posts),
        routes=[(rank, ((rank + 1) % size,)) for rank in range(size)] if hops else [],
        route=np.repeat(np.arange(size), hops),
        sizes=np.full(len(posts), -(-num_bytes // size)),
        senders=posts,
        first_receivers=np.arange(len(posts) + 1),
        receivers=np.roll(posts, -hops),
    )
