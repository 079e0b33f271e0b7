"""Measures the host's work for a hop of a round that is executed step by step; one JSON line for each codec.

    python tests/measure_hops.py [codecs] [--workers 8] [--topology ring] [--against <python>] [--turns 4]

All ranks run in this process, as in a virtual cluster. `hop_us` is the CPU time of the fastest round, in
microseconds, over the posts of all ranks; `round_us` is that of one rank's round. Both include kernels, the
copy that stands for the wire, and the log. Buckets are small, `--numel` coordinates, so that the host's work
is most of it. The codec `nothing` sends messages that nobody reads or writes.

`--against` names the Python of another checkout: its rounds and these are measured by processes in turns,
and each line gives the fastest of all, the other checkout's as `base_…`. Where metadata takes other hops,
compare rounds: `hops` counts the posts of all ranks in one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from statistics import median
from typing import Any

WARM_UP = 5
CODECS = ("nothing", "bf16", "dynamiq")

Figures = dict[str, Any]


def measured(codec: str, workers: int, topology: str, numel: int, rounds: int) -> Figures:
    """The figures of one codec in this process."""
    import torch

    torch.set_num_threads(1)
    run = _rounds(codec, workers, topology, numel)
    for step in range(WARM_UP):
        posts = run(step)
    seconds = list[float]()
    for step in range(WARM_UP, WARM_UP + rounds):
        begun = time.thread_time()
        run(step)
        seconds.append(time.thread_time() - begun)
    least = 1e6 * min(seconds)
    return {
        "codec": codec,
        "hops": posts,
        "hop_us": round(least / posts, 2),
        "median_hop_us": round(1e6 * median(seconds) / posts, 2),
        "round_us": round(least / workers, 1),
    }


def _rounds(codec: str, workers: int, topology: str, numel: int) -> Callable[[int], int]:
    """A function that runs the round of a step on all ranks, and returns how many hops they posted."""
    import torch

    from gradwire.codecs.interface import Layout, Round
    from gradwire.codecs.registry import make_codec
    from gradwire.harness.comm.collective.arena import Arena
    from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
    from gradwire.harness.comm.topology.registry import make_schedule
    from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
    from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local
    from gradwire.harness.parallel.synchronize import synchronization
    from gradwire.harness.timing.trace.log import TaskLog

    ranks, device = range(workers), torch.device("cpu")
    fabric, mailboxes = Fabric(partial(make_schedule, topology)), Mailboxes()
    arenas, traffic = [Arena(device) for _ in ranks], [Traffic() for _ in ranks]
    codecs = [None if codec == "nothing" else make_codec(name=codec) for _ in ranks]
    layout, generator = Layout.flat(numel, device=device), torch.Generator().manual_seed(0)
    buckets = [torch.randn(numel, generator=generator) for _ in ranks]

    def collective(rank: int, step: int, comm: ScheduledCollectives) -> Coroutine[Any, Any, Any]:
        own = codecs[rank]
        if own is None:
            return comm.all_reduce(_nothing(numel // workers // 2))
        this_round = Round(step, layout, rank, workers, 11)
        return synchronization(own, buckets[rank], this_round, check_hashes=False, order=None)(comm)

    def run(step: int) -> int:
        tasks, logs, results = [], [], dict[int, Any]()
        for rank in ranks:
            arenas[rank].begin_round()
            log = TaskLog(time.perf_counter, 0, numel, time.perf_counter())
            channel = LocalChannel(rank, workers, step, traffic[rank], mailboxes, log)
            comm = ScheduledCollectives(channel, fabric, arenas[rank])
            coroutine = collective(rank, step, comm)
            tasks.append(CollectiveTask(coroutine, partial(results.__setitem__, rank), _ignored, log))
            logs.append(log)
        run_local(tasks, mailboxes, time.perf_counter)
        return sum(log.num_posts for log in logs)

    return run


def _ignored(error: BaseException) -> None:
    """Does nothing, because `run_local` raises the error."""


def _nothing(num_bytes: int) -> Any:
    """The hops of a codec that does nothing, with messages of `num_bytes` bytes a chunk."""
    import torch

    from gradwire.codecs.collectives import Hops

    class Nothing(Hops):
        def message_bytes(self, chunks: range, workers: int) -> int:
            return num_bytes * len(chunks)

        def encode(self, chunks: range, out: Any, workers: int) -> None:
            """Does nothing."""

        def accumulate(self, message: Any, chunks: range, workers: int) -> None:
            """Does nothing."""

        def decode(self, message: Any, chunks: range, workers: int) -> None:
            """Does nothing."""

        def finish(self) -> Any:
            return torch.empty(0)

    return Nothing()


def by_turns(pythons: Sequence[str], turns: int, options: Sequence[str]) -> list[Figures]:
    """The figures of each codec as the first Python's checkout has them, with those of a second as `base_…`:
    the fastest of the processes that each of them starts in turn."""
    fastest: dict[str, dict[str, Figures]] = {python: {} for python in pythons}
    for turn in range(turns):
        for python in pythons if turn % 2 == 0 else reversed(pythons):
            command = [python, __file__, *options]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            for line in output.splitlines():
                found = json.loads(line)
                best = fastest[python].setdefault(found["codec"], found)
                best.update({key: min(best[key], own) for key, own in found.items() if key != "codec"})
    first, *others = (list(found.values()) for found in fastest.values())
    for other in others:
        for figures, base in zip(first, other, strict=True):
            figures.update({f"base_{key}": own for key, own in base.items() if key != "codec"})
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("codecs", nargs="*", default=CODECS)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--numel", type=int, default=4096, help="coordinates of the bucket")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--against", help="the Python of another checkout, to measure by turns")
    parser.add_argument("--turns", type=int, default=4)
    given = parser.parse_args()
    if given.against:
        options = [
            *given.codecs,
            *(f"--{key}={getattr(given, key)}" for key in ("workers", "topology", "numel")),
        ]
        for figures in by_turns(
            (sys.executable, given.against), given.turns, [*options, f"--rounds={given.rounds}"]
        ):
            print(json.dumps(figures))
        return
    for codec in given.codecs:
        figures = measured(codec, given.workers, given.topology, given.numel, given.rounds)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
