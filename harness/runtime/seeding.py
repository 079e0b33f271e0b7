"""Seeds that are pure functions of their purpose."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Returns a seed in [0, 2**63) that only depends on `parts` and their order.

    The first eight bytes of a sha256 over the parts, each written with its type and length, so that neither
    ("ab", "c") and ("a", "bc") nor 1 and "1" collide. Every random stream of a run has such a seed, e.g.
    `derive_seed(seed, "masking", step)`. It is the same in every process, in the virtual cluster and after a
    resume, and unrelated to its neighbours (unlike seed + step).
    """
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode()
        kind = "s" if isinstance(part, str) else "i"
        digest.update(f"{kind}{len(text)}:".encode() + text)
    return int.from_bytes(digest.digest()[:8], "little") & (2**63 - 1)
