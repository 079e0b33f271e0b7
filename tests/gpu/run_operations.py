"""Runs every operation once on the GPU: what compute-sanitizer watches."""

from __future__ import annotations

import torch
from operation_calls import call, calls_of_all
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels

if __name__ == "__main__":
    for dtype in (torch.float32, torch.bfloat16):
        for name, calls in calls_of_all(3001, dtype).items():
            for arguments in calls:
                with using_kernels("cuda"):
                    call(name, *(a.cuda() if isinstance(a, Tensor) else a for a in arguments))
    torch.cuda.synchronize()
