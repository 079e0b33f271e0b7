"""The CUDA sources compiled for the CPU, where `make` has built them; tests of them are skipped elsewhere."""

from __future__ import annotations

import pytest

from gradwire.codecs.native.loading import Library, library

NOT_BUILT = "the emulation of CUDA is not built: run `make emulation`"
UNWATCHED = "a library under AddressSanitizer does not watch shared memory"


def emulation() -> Library:
    """The library; skips the test where it is not built."""
    found = library("emulated")
    if found is None:
        pytest.skip(NOT_BUILT)
    return found
