"""Times every operation of the codecs on one size, without definitions: `task=bench` in a minute of a GPU.

    python tests/gpu/measure_operations.py [--device cuda] [--kernels cuda] [--coordinates N] [operation ...]

A line of JSON for each, as in `bench.json`; an operation that fails is reported, and the others follow.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from gradwire.harness.studies.bench.measure import BenchSettings, Measuring, pieces
from gradwire.harness.studies.bench.operation import chosen_operations

SECONDS = 0.03


def main(arguments: list[str]) -> None:
    """Measure the operations that match `arguments`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", default="cuda")
    parser.add_argument("--coordinates", type=int, default=1 << 27)
    parser.add_argument("operations", nargs="*")
    given = parser.parse_args(arguments)
    settings = BenchSettings(
        sizes=(given.coordinates,),
        dtypes=("bfloat16", "float32"),
        threads=(1,),
        seconds=SECONDS,
        kernels=given.kernels,
        device=torch.device(given.device),
        seed=0,
        definition=False,
    )
    measuring = Measuring(settings)
    for piece in pieces(chosen_operations(given.operations or ["*"]), settings):
        try:
            lines = [row.as_json() for row in measuring.rows(piece)]
        except (RuntimeError, ValueError) as error:
            lines = [{"operation": piece.operation.name, "dtype": piece.dtype, "error": str(error)[:300]}]
        for line in lines:
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
