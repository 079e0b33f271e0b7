"""Runs and files for which disk or memory is short are refused before they begin."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradwire.harness.config import resources
from gradwire.harness.config.compose import compose
from gradwire.harness.config.resources import check_disk, check_disk_of_sweep, items, num_parameters
from gradwire.harness.config.validate import validate
from gradwire.harness.data.prepare import prepared_folder
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.files.writing import check_room
from gradwire.harness.record.seal import mark_done
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.trainer.settings import RunConfig

MIB = 2**20


@pytest.fixture(scope="module")
def run() -> RunConfig:
    return validate(compose(["size=tiny", "codec=bf16"]))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free bytes of every disk, the last of the list."""
    found = [MIB]
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=10**15, free=found[-1]))
    return found


def test_a_run_says_what_it_needs_what_is_free_and_what_lowers_it(
    run: RunConfig, free: list[int], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"the run writes at least [\d.]+ MiB, and .* has 1 MiB free"
    ) as refused:
        check_disk(run, tmp_path / "run")
    for key in ("train.keep_checkpoints=1", "train.save_checkpoint=false", "hydra.run.dir=<folder>"):
        assert key in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_what_is_named_lowers_it(run: RunConfig, free: list[int], tmp_path: Path) -> None:
    none = dataclasses.replace(run.train, checkpoint_every=None, save_checkpoint=False)
    assert check_disk(dataclasses.replace(run, train=none), tmp_path) is not None, "rows, plots and traces"
    silent = dataclasses.replace(run.measure, trace=False)
    small = dataclasses.replace(run, train=none, measure=silent, plots=False)
    assert check_disk(small, tmp_path) is None


def test_a_disk_that_is_nearly_full_is_a_line(run: RunConfig, free: list[int], tmp_path: Path) -> None:
    free.append(int(sum(item.least for item in items(run))) + 1)
    note = check_disk(run, tmp_path)
    assert note is not None
    assert note.startswith("note: the run may write")
    free.append(100 * free[-1])
    assert check_disk(run, tmp_path) is None


def test_the_estimate_counts_checkpoints_weights_and_gradients(run: RunConfig) -> None:
    values = num_parameters(run.model)
    saved = dataclasses.replace(run, measure=dataclasses.replace(run.measure, save_gradients_at=[1, 2]))
    sizes = [item.least for item in items(saved)]
    assert sizes[:3] == [3 * 12 * values, 4 * values, 2 * run.cluster.size * 4 * values]


def test_what_an_earlier_attempt_has_written_is_room(run: RunConfig, free: list[int], tmp_path: Path) -> None:
    with (tmp_path / "checkpoints").open("wb") as file:
        file.truncate(10**9)  # a hole: nothing is written
    assert check_disk(run, tmp_path) is None
    (tmp_path / "checkpoints").unlink()
    mark_done(tmp_path)
    assert check_disk(run, tmp_path) is None, "a finished run writes nothing"


def test_gradients_on_disk_need_room_for_temporary_files(
    run: RunConfig, free: list[int], tmp_path: Path
) -> None:
    cluster = dataclasses.replace(run.cluster, name="virtual", gradients="disk")
    with pytest.raises(ConfigError, match=r"cluster.gradients=disk writes .* use cluster.gradients=memory"):
        check_disk(dataclasses.replace(run, cluster=cluster), tmp_path)


def test_a_sweep_counts_what_stays_of_every_run_and_the_checkpoints_of_one(
    run: RunConfig, free: list[int], tmp_path: Path
) -> None:
    runs = [(run, tmp_path / str(number)) for number in range(8)]
    stay = sum(item.least for item in items(run) if item.stays)
    passing = sum(item.least for item in items(run) if not item.stays)
    free.append(int(8 * stay + passing) - 1)
    with pytest.raises(ConfigError, match=r"the sweep with 8 runs to go writes .* hydra.sweep.dir=<folder>"):
        check_disk_of_sweep(runs)
    assert "note" in str(check_disk_of_sweep(runs[:7]))
    assert check_disk_of_sweep([]) is None


def test_text_whose_tokens_do_not_fit_is_refused_before_it_is_read(
    run: RunConfig, free: list[int], tmp_path: Path
) -> None:
    text = tmp_path / "a.txt"
    with text.open("wb") as file:
        file.truncate(10**9)
    dataset = DatasetConfig(name="text", path=str(text), sequence_length=64)
    with pytest.raises(
        ValueError, match=r"preparing dataset.path=.* GRADWIRE_CACHE=<folder on another disk>"
    ):
        prepared_folder(dataset, run.model, tmp_path / "cache")


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_the_one_above(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="free; do"):
        check_room(tmp_path / "a" / "b", "it", 1e18, 1e18, "do")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("overrides", "what", "remedy"),
    [
        (
            ("cluster=virtual",),
            "model=gpt2 with 9.18e+05 parameters: training",
            "use size=tiny, a smaller model",
        ),
        (("cluster.workers=1",), "cluster.workers=1: training", "use fewer, or cluster=virtual"),
        (("cluster.workers=3",), "cluster.workers=3: training in 3 workers", "use fewer, or cluster=virtual"),
        (
            ("cluster=virtual", "train.micro_batch=640"),
            "train.micro_batch=640 of 64 tokens: training",
            "choose a smaller train.micro_batch",
        ),
        (
            ("cluster=virtual", "eval.micro_batch=900"),
            "eval.micro_batch=900 of 64 tokens: training",
            "choose a smaller eval.micro_batch",
        ),
    ],
)
def test_a_run_for_which_memory_is_short_says_what_lowers_it(
    overrides: tuple[str, ...], what: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = compose(["size=tiny", *overrides])
    there = SimpleNamespace(total=MIB)
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: there)
    with pytest.raises(ConfigError) as refused:
        validate(asked)
    words = re.fullmatch(
        rf"{re.escape(what)} takes at least ([\d.]+) GiB, and this machine has 0.000977; {remedy}",
        str(refused.value),
    )
    assert words is not None, refused.value
    there.total = int(float(words[1]) * 1.01 * 2**30)
    validate(asked)
