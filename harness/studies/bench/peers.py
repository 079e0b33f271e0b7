"""Other projects' kernels for comparable work: PyTorch's own cast, and packages that may be installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gradwire.harness.studies.bench.operation import Peer

Call = Callable[[], object]


def _cast(x: Tensor) -> Call:
    """PyTorch's cast to E4M3: no scales, no block maxima."""
    target = torch.empty(x.numel(), dtype=torch.float8_e4m3fn, device=x.device)
    return lambda: target.copy_(x)


def _cast_back(x: Tensor) -> Call:
    source, target = x.to(torch.float8_e4m3fn), torch.empty_like(x)
    return lambda: target.copy_(source)


def _torchao(x: Tensor) -> Call | None:
    """torchao's cast to MXFP8: block maxima, scales and elements of blocks of 32."""
    try:
        from torchao.prototype.mx_formats.mx_tensor import to_mx
    except ImportError:
        return None
    rows = x[: x.numel() // 32 * 32].view(-1, 32)
    return partial(to_mx, rows, torch.float8_e4m3fn, 32) if x.is_cuda else None


def _deepspeed(bits: int, group: int, x: Tensor) -> Call | None:
    """DeepSpeed's symmetric quantizer, which ZeRO++ uses; its kernels are compiled at the first call."""
    if not x.is_cuda:
        return None
    try:
        from deepspeed.ops.quantizer import ds_quantizer
    except ImportError:
        return None
    copy = x.to(torch.float16)  # the quantizer overwrites its input
    return partial(ds_quantizer, copy, copy.numel() // group, bits)


TORCH_CAST = Peer("torch float8_e4m3fn cast", _cast)
TORCH_CAST_BACK = Peer("torch float8_e4m3fn cast back", _cast_back)
TORCHAO = Peer("torchao to_mx", _torchao)


def deepspeed_quantizer(bits: int, group: int) -> Peer:
    """DeepSpeed's quantizer of `bits` bits in groups of `group`."""
    return Peer("deepspeed ds_quantizer", partial(_deepspeed, bits, group))
