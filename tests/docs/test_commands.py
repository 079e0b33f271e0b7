"""Every command of the documentation can be run as it stands; a few are."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from benchmark_files import hub_records, write_files
from commands import Files, commands, commands_of, fault, replaced
from model_folders import save_folder
from packaged_wheels import place_small_weights
from pages import EXAMPLES, PAGES, name
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.studies.score.benchmarks import BENCHMARKS

SHORT = (*TINY_MODEL, "model=llama1b", "cluster=virtual", "cluster.workers=4", "train.steps=2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A reader's files: a finished run of four workers, its gradients, folders of text and benchmarks."""
    from gradwire.harness.launch.launch import run_here

    folder = tmp_path_factory.mktemp("reader")
    run, text = folder / "run", folder / "text"
    text.mkdir()
    (text / "words.txt").write_text("some words\n\nmore words\n" * 20)
    write_files(folder / "benchmarks", {name: hub_records(name, 2) for name in BENCHMARKS})
    tasks = [f"glue/{task}/{split}.tsv" for task in ("RTE", "SST-2") for split in ("train", "dev")]
    for place in ("mmlu/test/a.csv", "mmlu/val/a.csv", *tasks):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).touch()
    place_small_weights(folder)
    numbers = np.random.default_rng(0).standard_normal((8, 4096), dtype=np.float32)
    np.savez(folder / "my.npz", gradients=numbers)
    kept = "measure.save_gradients_at=[0,1]"
    run_here(validate(compose([*SHORT, "eval.max_sequences=4", kept])), run)
    assert (run / "DONE").is_file()
    return {
        "run": run,
        "text": text,
        "model": save_folder(folder / "model", "neox"),
        "gradients": folder / "my.npz",
        "row": Path(f"[{run}/gradients/step0.safetensors,{run}/gradients/step1.safetensors]"),
        **{name: folder / name for name in ("benchmarks", "mmlu", "glue")},
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_can_be_run(page: Path, files: Files) -> None:
    faults = [fault(command, files) for command in commands(page)]
    assert [found for found in faults if found is not None] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_examples_say_how_to_run_them(example: Path, files: Files) -> None:
    header = ast.get_docstring(ast.parse(example.read_text()))
    assert header is not None
    found = [
        command
        for line in header.splitlines()
        if line.split()[:1] in (["torchrun"], ["python"], ["accelerate"])
        for command in commands_of(line)
    ]
    assert found, "the docstring begins with the command that runs the example"
    assert [fault(command, files) for command in found if fault(command, files)] == []
    assert all(name(example) in command.words for command in found)


@pytest.mark.parametrize(
    "command",
    [
        "python run.py task=timeline run=outputs/<run>",
        "python run.py task=replay gradients=my.npz codec=dynamiq codec.bits=4 cluster.workers=8",
    ],
)
def test_some_are_run(command: str, files: Files, tmp_path: Path) -> None:
    """Runs other tasks, on the run of the other tests: `python run.py size=tiny cluster=virtual`, made
    small."""
    (asked,) = commands_of(command)
    assert asked.words in {found.words for page in PAGES for found in commands(page)}
    config = validate_any(compose(replaced(asked.words[2:], files)))
    task = TASKS[config.task.name]
    directory = [tmp_path / "made"] * task.has_directory
    assert task.load().run(config, *directory) == 0
    assert not task.has_directory or (tmp_path / "made" / "DONE").is_file()


@pytest.mark.parametrize(
    "planted",
    [
        "python run.py size=tiny codec.bitz=4",
        "python run.py size=teeny",
        "python run.py --multirun size=tiny codec=bf16,dynamic",
        "python run.py task=retime run=outputs/<another>",
        "torchrun --ranks-per-node 4 run.py size=tiny",
        "torchrun --nproc-per-node 4 run.py size=tiny cluster.workers=3",
        "accelerate launch --processes 4 run.py size=tiny",
        "srun --ntasks=2 python run.py size=tiny codec=dynamic",
        "make nothing",
        "make demo NOTHING=1",
        "python -m gradwire.nothing",
        "python examples/none.py",
        "pytest tests/none",
        "unheard-of command",
        "make lint && sudo python run.py sead=1",
    ],
)
def test_planted_mistakes_are_found(planted: str) -> None:
    assert [fault(command, {}) for command in commands_of(planted)][-1] is not None
