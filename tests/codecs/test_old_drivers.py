"""A driver older than the runtime in the kernels' library is refused where kernels are chosen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.codecs.native import loading
from gradwire.codecs.native.choice import choose_kernels, library_for, using_kernels
from gradwire.codecs.native.loading import Library, old_driver
from gradwire.harness.doctor.software import Compiled, libraries


def pretend(monkeypatch: pytest.MonkeyPatch, runtime: int, driver: int) -> None:
    """A library for CUDA that was built with this runtime, on a machine with this driver."""
    handle: Any = SimpleNamespace(
        gradwire_cuda_runtime=lambda: runtime,
        gradwire_cuda_driver=lambda: driver,
        gradwire_cuda_devices=lambda: 0,
    )
    real, fake = loading.library, Library("cuda", Path("fake.so"), handle)
    monkeypatch.setattr(loading, "library", lambda name: fake if name == "cuda" else real(name))


def test_an_older_driver_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 13010, 12040)
    for name in ("auto", "cuda"):
        with pytest.raises(
            ValueError, match=rf"kernels={name} .* runs CUDA 12\.4, .* CUDA 13\.1; update"
        ) as e:
            choose_kernels(name, "cuda")
        assert "\n" not in str(e.value)
    with using_kernels("auto"), pytest.raises(ValueError, match="update the driver"):
        library_for(torch.device("cuda"))
    assert choose_kernels("default", "cuda") == "default"
    assert choose_kernels("default") == "default"
    found = {
        finding.name: finding.value for finding in libraries(Compiled("v3", True, 0, True, old_driver()))
    }
    assert "the driver runs CUDA 12.4" in str(found["kernels=cuda"])


@pytest.mark.parametrize(("runtime", "driver"), [(13010, 13000), (12040, 13000), (13000, 0)])
def test_other_drivers_are_not(monkeypatch: pytest.MonkeyPatch, runtime: int, driver: int) -> None:
    pretend(monkeypatch, runtime, driver)
    assert old_driver() is None
