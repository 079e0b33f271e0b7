"""Every file of a run directory, damaged in every way: refused or repaired in one line, never used."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from omegaconf import DictConfig
from recorded import outcome
from training_jobs import tiny_run, train_all_virtually

from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.report.runs import load_run

OPTIONS = (
    *("cluster=virtual", "cluster.workers=2", "codec=topk", "codec.ef=true"),
    *(
        "train.steps=6",
        "train.log_every=1",
        "train.checkpoint_every=2",
        "eval.every=2",
        "measure.trace=false",
    ),
)
CHECKPOINT = "checkpoints/step-00000005"
RECORD = ("config.yaml", "run.json", "steps.jsonl", "evals.jsonl")
PARTS = ("state.json", "DONE", "model.safetensors", "optimizer.safetensors", "codec-rank1.safetensors")
MOST_MB, MOST_S = 500, 5.0

Damage = Callable[[bytes, bytes], bytes]
"""The file's contents and those of another run's, to what is there afterwards."""

DAMAGES: dict[str, Damage] = {
    "emptied": lambda own, other: b"",
    "cut": lambda own, other: own[: len(own) // 2],
    "a bit at the start": lambda own, other: bytes([own[0] ^ 1]) + own[1:],
    "a bit in the middle": lambda own, other: _flipped(own, len(own) // 2),
    "a bit near the end": lambda own, other: _flipped(own, len(own) - 3),
    "another run's": lambda own, other: other,
    "a number": lambda own, other: b"5\n",
    "a list": lambda own, other: b"[1]\n",
    "an empty object": lambda own, other: b"{}\n",
    "undecodable": lambda own, other: b"\xff\xfe" + own,
    "brackets": lambda own, other: b"[" * 100_000,
    "a header of brackets": lambda own, other: (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "aliases": lambda own, other: b"a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
    "a secret": lambda own, other: own + b"leak: ${oc.env:HOME}\n",
    "40 MB of one line": lambda own, other: b"x" * 40_000_000,
}


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.fixture(scope="module")
def settings() -> DictConfig:
    return tiny_run(*OPTIONS)


@pytest.fixture(scope="module")
def whole(settings: DictConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`own` and `other`, of another seed, stopped after 5 of 6 steps; `done`, the first one to its end."""
    folder = tmp_path_factory.mktemp("runs")
    train_all_virtually(settings, str(folder / "own"), 5)
    train_all_virtually(tiny_run(*OPTIONS, "seed=1"), str(folder / "other"), 5)
    shutil.copytree(folder / "own", folder / "done")
    train_all_virtually(settings, str(folder / "done"))
    assert [path.name[-1] for path in checkpoints(folder / "own")] == ["5", "4"]
    return folder


@pytest.fixture(autouse=True)
def within_bounds() -> Iterator[None]:
    """Memory over that at the start, where the system tells it; processor time, whatever else runs here."""
    begun, before = time.process_time(), _resident_mb(reset=True)
    yield
    most = _resident_mb(reset=False)
    if before and most:
        assert most - before < MOST_MB
    assert time.process_time() - begun < 10 * MOST_S, "of a dozen cases and more"


def _resident_mb(*, reset: bool) -> float:
    """MB of memory, the most since the last reset."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0.0


def damaged(whole: Path, name: str, damage: str, directory: Path, kind: str = "own") -> Path:
    """A copy of a run with one of its files damaged."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(whole / kind, directory)
    own, other = (whole / kind / name).read_bytes(), (whole / "other" / name)
    (directory / name).write_bytes(DAMAGES[damage](own, other.read_bytes() if other.exists() else b""))
    return directory


def one_line(text: str) -> None:
    assert text.isprintable()
    assert len(text) < 700, text


def check_resumed(settings: DictConfig, directory: Path, whole: Path) -> str:
    """Open a damaged run: what it then goes on from is what the whole one has; returns what was said."""
    begun = time.process_time()
    try:
        found = open_run(settings, directory)
    except ValueError as error:
        one_line(str(error))
        return str(error)
    finally:
        assert time.process_time() - begun < MOST_S
    for note in found.notes:
        one_line(note)
    if found.checkpoint is not None:
        pristine = whole / "own" / "checkpoints" / found.checkpoint.name
        for file in pristine.iterdir():
            assert (found.checkpoint / file.name).read_bytes() == file.read_bytes(), file.name
        step = int(found.checkpoint.name[5:])
        for name, rows in (("steps.jsonl", step), ("evals.jsonl", step // 2)):
            lines = (whole / "own" / name).read_bytes().splitlines(keepends=True)
            assert (directory / name).read_bytes() == b"".join(lines[:rows]), name
    else:
        assert found.notes[-1] == "no usable checkpoint is left: starting over"
        assert not (directory / "steps.jsonl").exists()
    return " | ".join(found.notes)


@pytest.mark.parametrize("name", [*RECORD, *(f"{CHECKPOINT}/{part}" for part in PARTS)])
def test_a_damaged_unfinished_run_goes_on_from_what_is_whole(
    name: str, settings: DictConfig, whole: Path, tmp_path: Path
) -> None:
    for damage in DAMAGES:
        directory = damaged(whole, name, damage, tmp_path / "run")
        said = check_resumed(settings, directory, whole)
        if name == "config.yaml":  # is written anew
            assert said == f"continuing after step 5, from {directory / CHECKPOINT}", damage
        elif name.endswith(".jsonl") and damage == "a secret":
            assert "continuing after step 5" in said, "what follows the whole rows is cut"
        elif name != "run.json":
            assert "continuing after step 5" not in said, damage
        elif damage not in ("a bit in the middle", "a bit near the end"):
            assert "run" in said and "continuing" not in said, damage


@pytest.mark.parametrize(
    "name", ["config.yaml", "run.json", "steps.jsonl", "evals.jsonl", "summary.json", "DONE"]
)
def test_a_damaged_finished_run_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    assert load_run(whole / "done").done.steps == 6
    for damage in DAMAGES:
        directory = damaged(whole, name, damage, tmp_path / "run", "done")
        if name == "DONE" and damage in ("emptied", "another run's"):
            continue  # as older versions left it
        with pytest.raises(ValueError) as refusal:
            load_run(directory)
        one_line(str(refusal.value))
        assert "resume=never" in str(refusal.value)
        assert str(directory) in str(refusal.value)


def test_lost_files_are_noticed(settings: DictConfig, whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for name in ("steps.jsonl", "evals.jsonl", *(f"{CHECKPOINT}/{part}" for part in PARTS)):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / "own", directory)
        (directory / name).unlink()
        assert "continuing after step 5" not in check_resumed(settings, directory, whole)
    for name in ("config.yaml", "steps.jsonl", "evals.jsonl", "summary.json", "run.json"):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / "done", directory)
        (directory / name).unlink()
        with pytest.raises(ValueError, match=name):
            load_run(directory)


def test_links_are_not_followed(settings: DictConfig, whole: Path, tmp_path: Path) -> None:
    """Neither to read what they lead to, nor to write there."""
    directory = tmp_path / "run"
    for name in ("steps.jsonl", "config.yaml", "checkpoints", f"{CHECKPOINT}/model.safetensors", "trace"):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / "own", directory)
        outside = tmp_path / "outside"
        if (directory / name).exists():
            shutil.move(directory / name, outside)
        (directory / name).symlink_to(outside)
        with pytest.raises(ValueError, match="is a link, and none is followed out of a run directory"):
            open_run(settings, directory)
        if outside.is_dir():
            shutil.rmtree(outside)
        else:
            outside.unlink(missing_ok=True)


def test_parts_of_other_ranks_and_runs_are_not_taken(
    settings: DictConfig, whole: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(whole / "own", directory)
    first, second = (directory / CHECKPOINT / f"codec-rank{rank}.safetensors" for rank in range(2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert "codec-rank0.safetensors differs from its digest" in check_resumed(settings, directory, whole)
    shutil.rmtree(directory)
    shutil.copytree(whole / "own", directory)
    shutil.rmtree(directory / "checkpoints")
    shutil.copytree(whole / "other" / "checkpoints", directory / "checkpoints")
    said = check_resumed(settings, directory, whole)
    assert "is the checkpoint after step 5 of run" in said
    assert "set aside as foreign-step-00000005" in said


def test_the_end_is_the_same_after_a_repair(settings: DictConfig, whole: Path, tmp_path: Path) -> None:
    """Bit for bit: from the checkpoint before the damage, and from none."""
    for name, damage in (("steps.jsonl", "a bit near the end"), ("evals.jsonl", "emptied")):
        directory = damaged(whole, name, damage, tmp_path / "run")
        train_all_virtually(settings, str(directory))
        assert outcome(directory) == outcome(whole / "done")


def test_what_a_state_says_is_checked_though_its_digests_fit(
    settings: DictConfig, whole: Path, tmp_path: Path
) -> None:
    """As nobody writes it by accident."""
    directory = tmp_path / "run"
    for key, value in product(
        ("step", "train_time_s", "bytes_by_phase", "files", "rows"), (None, -1, [], {}, "x")
    ):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / "own", directory)
        path = directory / CHECKPOINT / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
        (path.parent / "DONE").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
        if (key, value) not in (("files", {}), ("rows", {})):
            said = check_forged(settings, directory)
            assert "continuing after step 5" not in said, (key, value, said)


def check_forged(settings: DictConfig, directory: Path) -> str:
    try:
        said = " | ".join(open_run(settings, directory).notes)
    except ValueError as error:
        said = str(error)
    assert said.isprintable()
    return said
