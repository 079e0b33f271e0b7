"""Which implementations of the codecs' kernels can run here.

`default` is plain PyTorch: readable, on every device, and the definition of what a kernel computes.
"""

from __future__ import annotations

AVAILABLE = ("default",)


def choose_backend(name: str) -> str:
    """The backend that `kernels=name` stands for; `auto` is the fastest there is.

    Raises ValueError for one that is not available: a run never falls back silently.
    """
    if name == "auto":
        return AVAILABLE[-1]
    if name not in AVAILABLE:
        raise ValueError(f"kernels={name} is not available here; choose auto or {' or '.join(AVAILABLE)}")
    return name
