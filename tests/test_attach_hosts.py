"""The ways users train, with a codec: every code block of docs/library.md, and transformers' Trainer."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import attach_hosts_jobs as jobs
from pool import Workers

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "library.md"


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """(line number, code) of the page's Python blocks."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    return [(text[: match.start()].count("\n") + 1, match[1]) for match in found]


def test_every_block_of_the_guide_runs(workers: Workers) -> None:
    blocks = blocks_of(GUIDE)
    assert len(blocks) >= 10
    assert workers(2)(jobs.run_blocks, blocks) == [[], []]


def test_transformers_trainer_resumes_bit_for_bit(tmp_path: Path, workers: Workers) -> None:
    """The memory is that of the checkpoint that is resumed, though the run's own folder has one of the same
    step."""
    first, second = tmp_path / "first", tmp_path / "second"
    whole = workers(2)(jobs.train_with_trainer, str(first), None)
    assert {path.name for path in first.glob("checkpoint-3/gradwire*")} == {
        "gradwire-rank0.safetensors",
        "gradwire-rank1.safetensors",
    }
    (second / "checkpoint-3").mkdir(parents=True)
    for path in first.glob("checkpoint-6/gradwire*"):
        shutil.copy(path, second / "checkpoint-3")
    resumed = workers(2)(jobs.train_with_trainer, str(second), str(first / "checkpoint-3"))
    assert whole[0][0] == whole[1][0]
    for (weights, steps, sent, attached), (again, steps_again, sent_again, _) in zip(
        whole, resumed, strict=True
    ):
        assert not attached
        assert steps == steps_again == 6
        assert 0 < sent_again < sent
        assert weights == again


def test_the_callback_takes_up_the_checkpoint_that_is_resumed(tmp_path: Path, workers: Workers) -> None:
    run, other = tmp_path / "run", tmp_path / "other" / "checkpoint-3"
    other.mkdir(parents=True)
    assert workers(2)(jobs.call_back, str(run)) == [(False, True)] * 2

    def resume(checkpoint: Path | None, step: int = 3, **options: Any) -> list[tuple[str, int, bool]]:
        named = None if checkpoint is None else str(checkpoint)
        return workers(2)(jobs.resumed, str(run), named, step, options)

    assert resume(run / "checkpoint-3") == [("nothing", 3, True)] * 2
    assert resume(None, 0) == [("nothing", 0, True)] * 2
    assert resume(other, start_fresh=True) == [("nothing", 0, True)] * 2
    assert resume(other, resume_from=run / "checkpoint-3") == [("nothing", 3, True)] * 2
    for said, _, attached in resume(other):  # though `run` has a checkpoint of this step
        assert f"{other} has no gradwire-rank" in said
        assert "give the callback resume_from=<checkpoint>" in said
        assert not attached
    for said, _, attached in resume(other, resume_from=run / "checkpoint-2"):
        assert "was saved at step 2, the trainer resumes at step 3; leave resume_from out" in said
        assert not attached
    (run / "checkpoint-3" / "gradwire-rank1.safetensors").unlink()
    for rank, (said, _, attached) in enumerate(resume(run / "checkpoint-3")):
        assert said.startswith("ValueError: load_state_dict(): ")
        assert rank or "rank 1 refuses: " in said
        assert not attached
