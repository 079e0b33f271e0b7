"""Bits on the wire per coordinate: the figure a bit budget is compared with."""

from __future__ import annotations


def wire_bits(num_bytes: int, gradients_sent: float, num_coordinates: int) -> float | None:
    """Bits per coordinate of an encoded gradient, of which a synchronization sends `gradients_sent`.

    None for one rank, which sends nothing, and where the backend sends and nobody counts.
    """
    if gradients_sent == 0 or num_bytes == 0:
        return None
    return 8 * num_bytes / (gradients_sent * num_coordinates)
