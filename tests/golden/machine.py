"""The machine's part in the bits of a run: PyTorch, transformers, the processor."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Machine:
    """Machines that are equal here give the same bits.

    `numerics` is a digest of what PyTorch's own operations give. Its version and the capability of its
    kernels are not enough: MKL chooses its code by the processor's maker and model as well. Where there are
    tiles of matrices (AMX), products of bfloat16 are added up in another order, which `capability` says. This
    project's compiled kernels do not count: at every level they give the bytes of the definitions.
    """

    torch: str
    transformers: str
    capability: str
    numerics: str

    @property
    def key(self) -> str:
        """The name of this machine's record."""
        return f"torch-{self.torch}-transformers-{self.transformers}-{self.capability}-{self.numerics}"


def this_machine() -> Machine:
    """The machine of this process, whose PyTorch must use one thread, as the ranks of all runs do."""
    capability = torch.backends.cpu.get_cpu_capability()
    if torch.cpu._is_amx_tile_supported():
        capability += "-AMX"
    return Machine(torch.__version__, transformers.__version__, capability, numerics())


def numerics() -> str:
    """Eight hexadecimal digits of what the operations that training uses give on this machine."""
    digest = hashlib.sha256()
    for tensor in [*_gradients(), *_functions(), *_products()]:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]


def _noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _gradients() -> list[Tensor]:
    """Loss and gradients of a small transformer, and its parameters after a step of AdamW."""
    shapes = ((512, 32), (32, 64), (64, 32), (32,))
    table, lift, drop, gain = (_noise(seed, *shape).requires_grad_() for seed, shape in enumerate(shapes))
    x = functional.embedding(torch.arange(64).view(2, 32) * 7 % 512, table)
    heads = functional.layer_norm(x, (32,), gain).view(2, 32, 2, 16).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    x = x + mixed.transpose(1, 2).reshape(2, 32, 32)
    x = x + (functional.gelu(x @ lift, approximate="tanh") * functional.silu(x @ lift)) @ drop
    x = x + functional.gelu(functional.rms_norm(x, (32,)))
    loss = functional.cross_entropy((x @ table.T).flatten(0, 1), torch.arange(64) * 5 % 512)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [table, lift, drop, gain]
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    torch.optim.AdamW(parameters, lr=1e-3).step()
    return [loss, *gradients, *parameters]


def _functions() -> list[Tensor]:
    """Functions and sums of as many values as no vector divides."""
    values = _noise(4, 10_001)
    each = [values.exp(), values.abs().log(), values.tanh(), values.sigmoid(), values.abs().rsqrt()]
    activations = [
        functional.gelu(values),
        functional.gelu(values, approximate="tanh"),
        functional.silu(values),
    ]
    sums = [values.sum(), values.double().square().sum(), values.norm(), values.std(), values.cumsum(0)]
    return [*each, *activations, *sums]


def _products() -> list[Tensor]:
    """Products of matrices of the sizes that models and codecs have, and what a codec solves."""
    matrix = _noise(5, 128, 96)
    return [matrix @ matrix.T, matrix.T @ _noise(6, 128, 2), torch.linalg.qr(matrix[:, :4])[0]]
