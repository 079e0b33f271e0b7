"""The ways users train, with a codec: every code block of docs/library.md, and transformers' Trainer."""

from __future__ import annotations

import re
from pathlib import Path

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
    whole = workers(2)(jobs.train_with_trainer, str(tmp_path), False)
    assert {path.name for path in tmp_path.glob("checkpoint-3/gradwire*")} == {
        "gradwire-rank0.safetensors",
        "gradwire-rank1.safetensors",
    }
    resumed = workers(2)(jobs.train_with_trainer, str(tmp_path), True)
    assert whole[0][0] == whole[1][0]
    for (weights, steps, sent, attached), (again, steps_again, sent_again, _) in zip(
        whole, resumed, strict=True
    ):
        assert not attached
        assert steps == steps_again == 6
        assert 0 < sent_again < sent
        assert weights == again


def test_the_callback_passes_on_skipped_steps_and_lost_files(tmp_path: Path, workers: Workers) -> None:
    for rank, (skipped, counted, said, attached) in enumerate(workers(2)(jobs.call_back, str(tmp_path))):
        assert not skipped
        assert counted
        assert said.startswith("ValueError: load_state_dict(): ")
        assert rank or "rank 1 refuses: " in said
        assert "has no gradwire-rank1.safetensors: give the callback resume_from=<checkpoint>" in said
        assert not attached
