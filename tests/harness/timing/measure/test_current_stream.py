"""Looking up the current stream of a GPU makes an object once for each stream."""

from __future__ import annotations

import pytest
import torch

from gradwire.codecs.native.call import stream_pointer
from gradwire.harness.timing.measure.stopwatch import CurrentStream


class Device:
    """A device whose current stream has the address `pointer`; `made` are the objects made of streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pointer, self.made = 0, list[str]()
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", self._address, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", self._make)

    def _address(self, index: int) -> int:
        assert index == 1
        return self.pointer

    def _make(self, device: torch.device) -> str:
        assert device == torch.device("cuda", 1)
        self.made.append(f"stream {self.pointer}")
        return self.made[-1]


def test_each_stream_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device, current = Device(monkeypatch), CurrentStream(torch.device("cuda", 1))
    found = []
    for device.pointer in (0, 64, 64, 0, 128, 0):
        found.append(current.get())
        assert stream_pointer(1) == device.pointer
    assert found == [f"stream {pointer}" for pointer in (0, 64, 64, 0, 128, 0)]
    assert device.made == ["stream 0", "stream 64", "stream 128"]
