"""Checkpoints on disk: whole or not there, verified, the oldest removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from saved import PARTS, RUN, save, state_after

from gradwire.harness.checkpoint.folder import (
    CheckpointReader,
    DamagedCheckpointError,
    checkpoints,
    remove,
    remove_all,
    remove_unfinished,
    set_aside,
    verified,
)
from gradwire.harness.checkpoint.write import seal, write_files


@pytest.fixture
def save_at(tmp_path: Path) -> Path:
    """A checkpoint."""
    return save(tmp_path, 120)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    before = os.umask(0o026)
    try:
        path = save(tmp_path, 120)
    finally:
        os.umask(before)
    assert path == tmp_path / "checkpoints" / "step-00000120"
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o640}, "as the user's files are"
    assert sorted(file.name for file in path.iterdir()) == [
        "DONE",
        "codec-rank0.safetensors",
        "model.safetensors",
        "state.json",
    ]
    reader = CheckpointReader(path)
    assert reader.state == verified(path, RUN)
    assert (reader.state.step, reader.state.train_time_s) == (120, [1.5, 2.5])
    cpu = torch.device("cpu")
    for name, tensors in PARTS.items():
        read = reader.part(name, cpu)
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[key], tensor) for key, tensor in tensors.items())
    assert reader.part("empty", cpu) == {}


def test_a_state_has_clocks_and_bytes_of_each_rank() -> None:
    state = state_after(0)
    assert state.impossible() is None and state_after(120).impossible() is None
    for wrong in ({"step": -1}, {"train_time_s": [], "bytes_by_phase": []}, {"train_time_s": [1.0]}):
        assert "is of step " in str(replace(state, **wrong).impossible())


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 90, 100, 1000):
        save(tmp_path, step, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00001000", "step-00000100"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def cut_short(path: Path) -> None:
    content = (path / "codec-rank0.safetensors").read_bytes()
    (path / "codec-rank0.safetensors").write_bytes(content[:-4])


def lose(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def change_the_state(path: Path) -> None:
    (path / "state.json").write_text((path / "state.json").read_text().replace("120", "121"))


DAMAGES = {
    "model.safetensors": flip_a_bit,
    "codec-rank0.safetensors": cut_short,
    "model.safetensors is missing": lose("model.safetensors"),
    "DONE is missing": lose("DONE"),
    "model.safetensors is not a whole safetensors file": lambda path: os.truncate(
        path / "model.safetensors", 2**42
    ),
    "state.json differs": change_the_state,
    "state.json differs from the digest in DONE": lambda path: (path / "DONE").write_bytes(b"\xff\xfe"),
    "state.json is missing": lose("state.json"),
}


@pytest.mark.parametrize("named", DAMAGES)
def test_damage_is_named(named: str, tmp_path: Path) -> None:
    path = save(tmp_path, 120)
    DAMAGES[named](path)
    with pytest.raises(DamagedCheckpointError) as refusal:
        verified(path, RUN)
    assert str(refusal.value).startswith(f"{path}: ")
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_cannot_be_read_now_is_not_taken_for_damaged(
    save_at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now = os.open

    def fail(path: Path, *flags: int) -> int:
        if Path(path).name == "model.safetensors":
            raise OSError(5, "Input/output error", str(path))
        return open_now(path, *flags)

    monkeypatch.setattr(os, "open", fail)
    named = r"model\.safetensors cannot be read \(Input/output error\); try again"
    with pytest.raises(ValueError, match=named) as refusal:
        verified(save_at, RUN)
    assert not isinstance(refusal.value, DamagedCheckpointError)


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    assert save(tmp_path, 120) == save(tmp_path, 120)
    assert len(checkpoints(tmp_path)) == 1


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    save(tmp_path, 120)
    for name in ("my-model", ".git", "step-1", ".step-notes"):
        (tmp_path / "checkpoints" / name).mkdir()
    set_aside(checkpoints(tmp_path)[0])
    remove_unfinished(tmp_path)
    remove_all(tmp_path)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == [".git", ".step-notes", "my-model", "step-1"]


def test_what_an_interruption_leaves_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    save(tmp_path, 100)
    write_files(tmp_path, 120, PARTS)
    (tmp_path / "checkpoints" / ".old-step-00000080").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000100"]
    remove_unfinished(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000100"]
    remove(checkpoints(tmp_path)[0])
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_checkpoint_without_all_its_files_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are missing, as if nodes did not share the run directory."""
    monkeypatch.setattr("gradwire.harness.checkpoint.write.SHARED_S", 0.2)
    num_files = write_files(tmp_path, 120, PARTS)
    state = state_after(120)
    with pytest.raises(
        RuntimeError, match="3 files were written, 2 are here; checkpoints need a run directory"
    ):
        seal(tmp_path, state, num_files + 1, keep=2)
    assert not checkpoints(tmp_path)
