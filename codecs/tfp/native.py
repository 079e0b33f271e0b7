"""TFP's compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.loading import Library

_BLOCK, _SCALE_BYTES = 32, 2

Given = dict[str, tuple[Tensor | None, int]]
"""Tensors of a call by field, with the elements that they must have."""


@dataclass(frozen=True)
class TruncationKernels:
    """`GroupKernels` of one format, `bits` of one of `Base`; `random` are the random bits that are added."""

    bits: int
    base: str
    random: CoordinateBits | None

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None = None
    ) -> None:
        values, numel = readable(values), values.numel()
        size = self._message_bytes(numel, self.bits)
        given: Given = {
            "values_in": (values, numel),
            "message_in": (message, size),
            "message_out": (out, size),
        }
        self._run(library, "tfp_encode", values.device, numel, self.bits, given, first)

    def plane(self, library: Library, values: Tensor, bits: int, out: Tensor) -> None:
        """Write to `out` what `encode` writes beyond the first `bits` of each coordinate."""
        values, numel = readable(values), values.numel()
        given: Given = {"values_in": (values, numel), "message_out": (out, self._plane_bytes(numel, bits))}
        self._run(library, "tfp_plane", values.device, numel, bits, given)

    def refine(
        self, library: Library, message: Tensor, plane: Tensor, numel: int, bits: int, out: Tensor
    ) -> None:
        """Join a message of `bits` and the plane of the others to what `encode` writes."""
        given = self._received(message, plane, numel, bits)
        given["message_out"] = (out, self._message_bytes(numel, self.bits))
        self._run(library, "tfp_refine", out.device, numel, bits, given)

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        self.decode_refined(library, message, None, values, self.bits, add)

    def decode_refined(
        self, library: Library, message: Tensor, plane: Tensor | None, values: Tensor, bits: int, add: bool
    ) -> None:
        """Decode a message of `bits` and, if there is one, the plane of the others."""
        operation, numel = "tfp_add" if add else "tfp_decode", values.numel()
        given = self._received(message, plane, numel, bits)
        given["values_out"] = (values, numel)
        self._run(library, operation, values.device, numel, bits, given)

    def _run(
        self,
        library: Library,
        operation: str,
        device: torch.device,
        numel: int,
        bits_in: int,
        given: Given,
        first: int = 0,
    ) -> None:
        random = self.random or CoordinateBits((0, 0), 0)
        run(
            library,
            operation,
            device,
            **given,
            numel=numel,
            first=first,
            bits=self.bits,
            bits_in=bits_in,
            base=library.constant(f"TFP_{self.base.upper()}"),
            stochastic=self.random is not None,
            key0=random.key[0],
            key1=random.key[1],
            rank=random.rank,
            key_place=(random.key_place, 2),
        )

    def _received(self, message: Tensor, plane: Tensor | None, numel: int, bits: int) -> Given:
        return {
            "message_in": (message, self._message_bytes(numel, bits)),
            "plane_in": (plane, self._plane_bytes(numel, bits)),
        }

    def _message_bytes(self, numel: int, bits: int) -> int:
        blocks = 0 if self.base == "plain" else -(-numel // _BLOCK)
        return -(-numel // 8) * bits + blocks * _SCALE_BYTES

    def _plane_bytes(self, numel: int, bits: int) -> int:
        return -(-numel // 8) * (self.bits - bits)
