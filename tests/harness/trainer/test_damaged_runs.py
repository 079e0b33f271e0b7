"""Every file of a run directory, damaged in every way, is refused or repaired in one line, never used."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path

import pytest
from damages import DAMAGES, one_line
from recorded import outcome
from training_jobs import opened, tiny_run, train_all_virtually

from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.launch.worker import train_virtual
from gradwire.harness.record.runs import load_run
from gradwire.harness.timing.trace.files import read_traces, recorded_steps
from gradwire.harness.trainer.settings import RunConfig

OPTIONS = (
    *("cluster=virtual", "cluster.workers=2", "codec=topk", "codec.ef=true"),
    *(
        "train.steps=6",
        "train.log_every=1",
        "train.checkpoint_every=2",
        "eval.every=2",
        "measure.trace=true",
    ),
)
CHECKPOINT = "checkpoints/step-00000005"
LOST = "; restore its contents, or start over with resume=never"
RECORD = ("config.yaml", "run.json", "steps.jsonl", "evals.jsonl")
PARTS = ("state.json", "DONE", "model.safetensors", "optimizer.safetensors", "codec-rank1.safetensors")
MOST_S = 5.0


@pytest.fixture(scope="module")
def settings() -> RunConfig:
    return tiny_run(*OPTIONS)


@pytest.fixture(scope="module")
def whole(settings: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    """Bounds the processor time of each test; `test_bombs.py` bounds the memory."""
    begun = time.process_time()
    yield
    assert time.process_time() - begun < 10 * MOST_S, "of a dozen cases and more"


def damaged(whole: Path, name: str, damage: str, directory: Path, kind: str = "own") -> Path:
    """A copy of a run with one of its files damaged."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(whole / kind, directory)
    own, other = (whole / kind / name).read_bytes(), (whole / "other" / name)
    (directory / name).write_bytes(DAMAGES[damage](own, other.read_bytes() if other.exists() else b""))
    return directory


def check_resumed(settings: RunConfig, directory: Path, whole: Path) -> str:
    """Opens a damaged run, checks that it resumes from what the undamaged one has, and returns the
    messages."""
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
def test_a_damaged_unfinished_run_resumes_from_intact_files(
    name: str, settings: RunConfig, whole: Path, tmp_path: Path
) -> None:
    for damage in DAMAGES:
        directory = damaged(whole, name, damage, tmp_path / "run")
        said = check_resumed(settings, directory, whole)
        if name == "config.yaml":  # is written anew
            assert said == f"resuming after step 5, from {directory / CHECKPOINT}", damage
        elif name.endswith(".jsonl"):
            *notes, end = said.split(" | ")
            if damage == "a secret":
                assert end.startswith("resuming after step 5") and not notes, "what follows the rows is cut"
            elif notes:
                assert notes[0].startswith(f"{directory / CHECKPOINT} counts on {directory / name}, which ")
                assert end.startswith("resuming after step 4"), damage
            else:
                assert end.startswith(f"{directory / name}: ") and end.endswith(LOST), damage
                assert len(checkpoints(directory)) == 2, "they may be of use when the rows are back"
        elif name != "run.json":
            assert "resuming after step 5" not in said, damage
        elif damage not in ("a bit in the middle", "a bit near the end"):
            assert "run" in said and "resuming" not in said, damage


@pytest.mark.parametrize(
    "name", ["config.yaml", "run.json", "steps.jsonl", "evals.jsonl", "summary.json", "DONE"]
)
def test_a_damaged_finished_run_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    assert load_run(whole / "done").done.steps == 6
    for damage in DAMAGES:
        directory = damaged(whole, name, damage, tmp_path / "run", "done")
        with pytest.raises(ValueError) as refusal:
            load_run(directory)
        one_line(str(refusal.value))
        assert "resume=never" in str(refusal.value)
        assert str(directory) in str(refusal.value)


def test_lost_files_are_noticed(settings: RunConfig, whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for name in ("steps.jsonl", "evals.jsonl", *(f"{CHECKPOINT}/{part}" for part in PARTS)):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / "own", directory)
        (directory / name).unlink()
        said = check_resumed(settings, directory, whole)
        if name.endswith(".jsonl"):
            assert said == f"{directory / name}: is not there{LOST}"
        else:
            assert "resuming after step 5" not in said
    for name in ("config.yaml", "steps.jsonl", "evals.jsonl", "summary.json", "run.json"):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / "done", directory)
        (directory / name).unlink()
        with pytest.raises(ValueError, match=name):
            load_run(directory)


def test_links_are_not_followed(settings: RunConfig, whole: Path, tmp_path: Path) -> None:
    """Links are followed neither to read nor to write."""
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
    settings: RunConfig, whole: Path, tmp_path: Path
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


def test_the_end_is_the_same_though_the_last_rows_are_lost(
    settings: RunConfig, whole: Path, tmp_path: Path
) -> None:
    """The run resumes, bit for bit, from the checkpoint whose rows are there."""
    directory = tmp_path / "run"
    shutil.copytree(whole / "own", directory)
    rows = (directory / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "steps.jsonl").write_bytes(b"".join(rows[:-1]) + rows[-1][:9])
    train_all_virtually(settings, str(directory))
    assert outcome(directory) == outcome(whole / "done")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("emptied", "changed while the run went on"),
        ("a bit at the start", "holds other rows than were written"),
    ],
)
def test_rows_changed_during_a_run_end_it(
    damage: str, problem: str, settings: RunConfig, tmp_path: Path
) -> None:
    """At the next checkpoint or, if their length is unchanged, before figures are taken from them."""
    path, asked = tmp_path / "run" / "steps.jsonl", count()

    def stop() -> bool:
        if next(asked) == 3:
            path.write_bytes(DAMAGES[damage](path.read_bytes(), b""))
        return False

    with pytest.raises(ValueError, match=f"{problem}{LOST}$") as refusal:
        train_virtual(settings, tmp_path / "run", opened(settings, tmp_path / "run"), stop)
    one_line(str(refusal.value))
    assert not (tmp_path / "run" / "DONE").exists()


@pytest.mark.parametrize("damage", ["emptied", "cut", "a bit in the middle", "another's", "a number"])
def test_a_damaged_trace_changes_nothing(
    damage: str, settings: RunConfig, whole: Path, tmp_path: Path
) -> None:
    """It is cut, as are the other ranks', or begun anew; what is left is that of a whole one."""
    directory = damaged(whole, "trace/rank1.arrows.zst", damage, tmp_path / "run")
    train_all_virtually(settings, str(directory))
    assert outcome(directory) == outcome(whole / "done")
    kept = recorded_steps(directory, 2, run=load_run(directory).done.config_hash)
    assert kept.damage is None and kept.steps[-1] == 5
    assert kept.steps[:-1] == list(range(len(kept.steps) - 1)), "from the beginning on, and the new one"
    before = dict(read_traces(whole / "own", 2))
    for step, trace in read_traces(directory, 2):
        assert step == 5 or trace == before[step]


def test_what_a_state_says_is_checked_though_its_digests_fit(
    settings: RunConfig, whole: Path, tmp_path: Path
) -> None:
    """Such a file is never written by accident."""
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
            assert "resuming after step 5" not in said, (key, value, said)


def check_forged(settings: RunConfig, directory: Path) -> str:
    try:
        said = " | ".join(open_run(settings, directory).notes)
    except ValueError as error:
        said = str(error)
    assert said.isprintable()
    return said
