"""The virtual workers' gradients in memory and on disk: the same bits, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from gradwire.harness.comm.world.gradient_store import (
    DiskStore,
    GradientStore,
    MemoryStore,
    SpillingStore,
    make_store,
)

CPU = torch.device("cpu")
STORES = (MemoryStore, DiskStore, partial(SpillingStore, CPU))


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_put_comes_back_bit_for_bit(make: Callable[[], GradientStore], dtype: torch.dtype) -> None:
    store = make()
    kept = {
        (rank, bucket): torch.randn(7 + 1000 * bucket).to(dtype) for rank in range(3) for bucket in range(2)
    }
    kept[1, 0][0] = float("nan")
    for (rank, bucket), x in kept.items():
        store.put(rank, bucket, x)
    for (rank, bucket), x in reversed(kept.items()):
        found = store.get(rank, bucket)
        assert found.dtype == dtype
        assert torch.equal(found.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("make", STORES)
def test_a_copy_is_kept(make: Callable[[], GradientStore]) -> None:
    store, x = make(), torch.ones(10)
    store.put(0, 0, x)
    x.zero_()
    assert store.get(0, 0).sum() == 10


@pytest.mark.parametrize("make", STORES)
def test_cleared_stores_hold_the_next_step_alone(make: Callable[[], GradientStore]) -> None:
    store = make()
    store.put(0, 0, torch.ones(1000))
    store.put(0, 1, torch.ones(10))
    store.clear()
    store.put(0, 0, torch.zeros(3))
    assert store.get(0, 0).tolist() == [0, 0, 0]
    with pytest.raises(KeyError):
        store.get(0, 1)


def test_the_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file disappears with the process, however that ends."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    store = DiskStore()
    store.put(0, 0, torch.ones(1000))
    assert os.listdir(tmp_path) == []
    assert store.get(0, 0).sum() == 1000


def test_auto_goes_by_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is free as a step begins; what has no room there comes back from the disk."""
    free = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    on_disk = list[tuple[int, int]]()
    put = DiskStore.put

    def seen(store: DiskStore, rank: int, bucket: int, x: torch.Tensor) -> None:
        on_disk.append((rank, bucket))
        put(store, rank, bucket, x)

    monkeypatch.setattr(DiskStore, "put", seen)
    store = make_store("auto", CPU)
    for _ in range(2):
        for rank in range(3):
            store.put(rank, 0, torch.full((50,), float(rank)))
        assert [store.get(rank, 0).sum() for rank in range(3)] == [0, 50, 100]
        assert on_disk == [(2, 0)]
        store.clear()
        on_disk.clear()


def test_a_store_can_be_chosen() -> None:
    assert isinstance(make_store("memory", CPU), MemoryStore)
    assert isinstance(make_store("disk", CPU), DiskStore)


def test_tensors_stay_in_their_places_from_step_to_step() -> None:
    """Others get new ones, and places that a step has not used are free after it."""
    store, places = MemoryStore(in_place=True), []
    for step in range(3):
        store.clear()
        store.clear()  # nothing was put: the places stay
        assert store.reserved == (0 if not step else 60)
        store.put(0, 0, torch.full((10,), float(step)))
        store.put(1, 0, torch.full((5,), -float(step)))
        assert store.reserved == 0
        places.append((store.get(0, 0).data_ptr(), store.get(1, 0).data_ptr()))
        assert store.get(0, 0).tolist() == [step] * 10 and store.get(1, 0).tolist() == [-step] * 5
    assert len(set(places)) == 1
    store.clear()
    store.put(0, 0, torch.zeros(9))
    assert store.get(0, 0).numel() == 9 and store.reserved == 20
    store.clear()
    assert store.reserved == 36
    with pytest.raises(KeyError):
        store.get(1, 0)


def test_reserved_places_count_as_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two tensors of 80 bytes: in the second step it is reserved, and no longer free."""
    free = [320]
    monkeypatch.setattr("gradwire.harness.comm.world.gradient_store._free", lambda device: free[0])
    store = SpillingStore(CPU, in_place=True)
    for _ in range(3):
        store.clear()
        for bucket in range(2):
            store.put(0, bucket, torch.ones(20))
        assert [type(store._stores[0, bucket]) for bucket in range(2)] == [MemoryStore] * 2
        free[0] = 160
