"""Times rounds of all ranks on one device, step by step and replayed from a CUDA graph; one JSON line each.

    python tests/gpu/measure_rounds.py [--device cuda] [--round 8:ring:6553600 ...] [--codec dynamiq ...]

Times are milliseconds per rank: the median of `REPEATS` rounds, divided by the number of ranks. No network
takes part. The host's time ends when it has started the round, the device's with the round's last kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from captured_rounds import Rounds

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.comm.transport.graph import CudaGraph

REPEATS = 9
CODECS = ("fp32", "bf16", "dynamiq", "dynamiq_plus", "thc", "qsgd", "mxfp8")
ROUNDS = ("8:ring:6553600", "8:butterfly:6553600", "4:ring:100000000")
"""Ranks, topology, coordinates: PyTorch's default bucket of 25 MB, and one ruled by arithmetic."""


def time_calls(run: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Milliseconds of a call, on the host and, where that is a GPU, on the device."""
    times: dict[str, list[float]] = {"host": []}
    for _ in range(REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
        begun = time.perf_counter()
        run()
        times["host"].append(1e3 * (time.perf_counter() - begun))
        if device.type == "cuda":
            stop.record()
            stop.synchronize()
            times.setdefault("gpu", []).append(start.elapsed_time(stop))
    return {where: median(taken) for where, taken in times.items()}


def measure(
    codec: str, ranks: int, topology: str, numel: int, device: torch.device
) -> dict[str, str | float]:
    """The times of one codec's rounds, as a line of `rounds.jsonl`."""
    rounds = Rounds(codec, {}, ranks, topology, numel, device)
    for step in range(3):
        rounds.fill(step)
        rounds.run(step)
    line: dict[str, str | float] = {"codec": codec, "n": ranks, "topology": topology, "coordinates": numel}
    times = {"eager": time_calls(lambda: rounds.run(5), device)}
    if device.type == "cuda" and rounds.codecs[0].refuses_capture(rounds.layout) is None:
        captured, key = rounds.captured(CudaGraph()), rounds.key(5)
        times["graph"] = time_calls(lambda: captured.replay(key), device)
    for kind, taken in times.items():
        line |= {f"{kind}_{where}_ms_per_rank": round(ms / ranks, 4) for where, ms in taken.items()}
    return line


def main(arguments: list[str]) -> None:
    """Measure what `arguments` ask for. A codec that fails is reported, and the others continue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--round", action="append", metavar="RANKS:TOPOLOGY:COORDINATES")
    parser.add_argument("--codec", action="append")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    for ranks, topology, numel in (each.split(":") for each in given.round or ROUNDS):
        for codec in given.codec or CODECS:
            try:
                own_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
                with using_kernels("auto"), torch.cuda.stream(own_stream):
                    line = measure(codec, int(ranks), topology, int(numel), device)
            except RuntimeError as error:
                line = {"codec": codec, "n": int(ranks), "topology": topology, "error": str(error)[:200]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
