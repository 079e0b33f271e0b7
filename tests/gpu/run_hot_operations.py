"""Runs the operations of the hot kernels twice each: what Nsight Compute profiles.

ncu ... python tests/gpu/run_hot_operations.py [--device cuda] [--coordinates N] [operation ...]
"""

from __future__ import annotations

import argparse
import sys

import torch

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.studies.bench.operation import chosen_operations

OPERATIONS = (
    "dynamiq.compress.mix",
    "dynamiq.recompress.mix",
    "dynamiq.decompress.mix",
    "dynamiq.plan",
    "dynamiq_plus.compress.mix",
    "tfp.decode.12.plain",
    "tfp.decode.8.plain",
    "levels.decode.4",
    "thc.quantize.largest",
    "thc.dequantize.largest",
)


def main(arguments: list[str]) -> int:
    """Run the operations and return the number of calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--coordinates", type=int, default=1 << 27)
    parser.add_argument("operations", nargs="*")
    given = parser.parse_args(arguments)
    calls = 0
    for dtype in (torch.bfloat16, torch.float32):
        bucket = torch.randn(given.coordinates, device=given.device).to(dtype)
        for operation in chosen_operations(given.operations or list(OPERATIONS)):
            with using_kernels("cuda" if given.device == "cuda" else "auto"):
                case = operation.make(bucket)
                for _ in range(2):
                    case.run()
                    calls += 1
                    if bucket.is_cuda:
                        torch.cuda.synchronize()
    return calls


if __name__ == "__main__":
    main(sys.argv[1:])
