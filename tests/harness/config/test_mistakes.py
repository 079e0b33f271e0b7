"""Mistakes that new users make: each is answered by one line that says what was meant."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.codecs.fields import Rule, check_value
from gradwire.harness.config.choices import COMMON, choices_in
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.tasks.front import arranged, check_command_line
from gradwire.harness.tasks.train import first_lines

CHOICES = [
    ("sweep=demo", "did you mean sweeps=demo?"),
    ("experiments=smoke", "did you mean experiment=smoke?"),
    ("size=huge", "gpu, paper, small, tiny"),
    ("size=TINY", "did you mean size=tiny?"),
    ("topology=tree", "broadcast, butterfly, ring, two_level; did you mean topology=butterfly?"),
    ("codec=none", "did you mean codec=fp32?"),
    ("codec=ring", "ring is a choice of topology: use topology=ring"),
    ("experiment=demo", "demo is a choice of sweeps: use sweeps=demo"),
    ("tracking=true", "did you mean tracking=wandb?"),
    ("parallel=fsdp", "did you mean parallel=sharded?"),
    ("sweeps=sweeps/demo.yaml", "did you mean sweeps=demo?"),
    ("dataset=my.txt", "use dataset.path=my.txt"),
    ("codec=mine.py", "use codec=<module>:<class>, e.g. codec=mine:Mine"),
    ("model=gpt3", "did you mean model=gpt2?"),
    ("task=compare run=outputs/x", "unknown key run; did you mean runs?"),
]
"""Choices that there are not, by another name or of another group."""

WORDS = [
    ("tiny", "it is a choice of size; did you mean size=tiny?"),
    ("train size=tiny", "did you mean task=train?"),
    ("size= tiny", "write it without spaces: size=tiny"),
    ("size = tiny", "write it without spaces: size=tiny"),
    ("size:tiny", "did you mean size=tiny?"),
    ("size==tiny", "did you mean size=tiny?"),
    ("size=tiny, codec=bf16", "leave the , out at its end: size=tiny"),
    ("size=tiny train.lr", "it has no value; write train.lr=<value>"),
    ("python run.py size=tiny", "leave it out"),
    ("help", "did you mean --help?"),
    ("seed=range(0,x)", "seed=range(0,x): range takes numbers: first, end and step; e.g. --multirun"),
    ("hello", "arguments are key=value, e.g. size=tiny"),
    ("—multirun size=tiny", "type plain ones: --multirun"),
    ("codec=“bf16”", "type plain ones: codec=\"bf16\""),
]  # fmt: skip
"""Words that are no key=value."""

BRACKETS = [
    ("codec.exclude=[*embed*", "the bracket ] is missing: write 'codec.exclude=[*embed*]'"),
    ("codec.exclude=*embed*]", "the bracket [ is missing: write 'codec.exclude=[*embed*]'"),
    ("measure.targets=[20,[30]", "the bracket ] is missing"),
    ("dataset.files={train:a", "the bracket } is missing"),
    ("measure.targets=(20,30)", "write 'measure.targets=[20,30]'"),
    ("measure.targets=20,30", "write 'measure.targets=[20,30]' for a list"),
    ("train.steps=<steps>", "<steps> stands for a value of your own"),
    ("dataset.path=~/my.txt", "quote a path with ~, or use $HOME"),
    ("'dataset.path=\"my text'", "a quote is missing"),
]
"""Values that the grammar does not know."""

VALUES = [
    ("measure.targets=20", "did you mean measure.targets=[20]?"),
    ("measure.save_gradients_at=3", "did you mean measure.save_gradients_at=[3]?"),
    ("task=bench bench.sizes=1M", "did you mean bench.sizes=[1000000]?"),
    ("task=bench bench.codecs=bf16", "did you mean bench.codecs=[bf16]?"),
    ("train.steps=1e3", "did you mean train.steps=1000?"),
    ("train.steps=1k", "did you mean train.steps=1000?"),
    ("train.lr=0,001", "write train.lr=0.001 for a fraction"),
    ("network=paced network.rate_mbit=10Gbit", "did you mean network.rate_mbit=10000?"),
    ("network=simulated network.latency_s=5ms", "did you mean network.latency_s=0.005?"),
    ("codec=dynamiq codec.bits=4bit", "did you mean codec.bits=4?"),
    ("--multirun size=tiny seed=0-3", "'seed=range(0,4)'"),
    ("plots=no", "did you mean plots=false?"),
    ("cluster.device=gpu", "did you mean cluster.device=cuda?"),
    ("cluster.workers=auto", "did you mean cluster.workers=null?"),
    ("train.precision=float32", "did you mean train.precision=fp32?"),
    ("train.optimizer=AdamW", "did you mean train.optimizer=adamw?"),
    ("train.checkpoint_every=0", "did you mean train.checkpoint_every=null?"),
    ("resume=true", "did you mean resume=auto?"),
    ("cluster.nodes=2", "did you mean cluster.ranks_per_node?"),
    ("out=here", "did you mean hydra.run.dir?"),
    ("SIZE=tiny", "did you mean size=tiny?"),
    ("size=tiny train.epochs=3", "has no effect with train.steps=200; add train.steps=null"),
]
"""Values with units, in other programs' words, or of the wrong form."""

FLAGS = [
    ("--resume size=tiny", "the same command resumes an interrupted run, and resume=auto"),
    ("--continue", "the same command resumes an interrupted run"),
    ("--resume=never", "did you mean resume=never?"),
    ("--lr 0.1", "did you mean train.lr=0.1?"),
    ("--size tiny", "did you mean size=tiny?"),
    ("--nproc_per_node=4", "did you mean cluster.workers=4?"),
    ("--seed 1", "did you mean seed=1?"),
    ("--output_dir=out", "did you mean hydra.run.dir=out?"),
    ("--fp16", "did you mean train.precision=bf16?"),
    ("--dry-run", "did you mean task=plan"),
    ("--verbose", "did you mean train.log_every=1?"),
]
"""Options of other programs."""


@pytest.fixture
def answer_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns the refusal of a command line, which is one line."""
    monkeypatch.chdir(tmp_path)

    def answer(given: str) -> str:
        with pytest.raises(ConfigError) as refused:
            check_command_line(arranged(shlex.split(given)))
        assert "\n" not in str(refused.value)
        return str(refused.value)

    return answer


@pytest.mark.parametrize(("given", "answer"), CHOICES)
def test_a_choice_that_does_not_exist(given: str, answer: str, answer_to: Callable[[str], str]) -> None:
    assert answer in answer_to(given)


@pytest.mark.parametrize(("given", "answer"), WORDS)
def test_a_word_that_is_no_override(given: str, answer: str, answer_to: Callable[[str], str]) -> None:
    assert answer in answer_to(given)


@pytest.mark.parametrize(("given", "answer"), [*BRACKETS, *VALUES])
def test_a_value_that_cannot_be_read(given: str, answer: str, answer_to: Callable[[str], str]) -> None:
    assert answer in answer_to(given)


@pytest.mark.parametrize(("given", "answer"), FLAGS)
def test_an_option_of_another_program(given: str, answer: str, answer_to: Callable[[str], str]) -> None:
    assert answer in answer_to(given)


@pytest.mark.parametrize("task", ["replay", "statistics", "score", "retime", "timeline"])
def test_what_a_task_needs_is_found_among_the_runs(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"has no value; add \w+=<.*; .*outputs/"):
        check_command_line([f"task={task}"])
    run = tmp_path / "outputs" / "mine"
    for name in ("gradients/step3.safetensors", "checkpoint/config.json", "trace/x", "config.yaml", "DONE"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    with pytest.raises(ConfigError, match=r"e\.g\. \w+=outputs/mine"):
        check_command_line([f"task={task}"])


def test_data_that_is_not_here_is_not_answered_by_a_size_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="dataset.path=<its files") as refused:
        check_command_line(["size=tiny", "dataset=wikitext103"])
    assert "size=tiny" not in str(refused.value)
    with pytest.raises(ConfigError, match="or size=tiny"):
        check_command_line(["size=small"])


@pytest.mark.parametrize("preset", ["smoke", "debug"])
def test_a_preset_of_one_run_needs_no_data_from_elsewhere(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checked = check_command_line([f"experiment={preset}"])
    assert checked is not None
    assert checked.mapping()["dataset"]["name"] == "embedded"


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (["cluster.workers=1"], "note: one worker sends nothing"),
        (["cluster.workers=2"], ""),
        (["cluster=virtual"], "note: links are unlimited"),
        (["cluster=virtual", "network=simulated"], ""),
    ],
)
def test_a_run_that_shows_nothing_of_a_codec_says_so(overrides: list[str], note: str, tmp_path: Path) -> None:
    _, *notes = first_lines(validate(compose(["size=tiny", *overrides])), tmp_path)
    assert [line[: len(note)] for line in notes] == ([note] if note else [])


def test_common_groups_are_groups() -> None:
    assert {*COMMON} <= {*choices_in(conf_directory())}


def test_no_example_is_a_value_that_the_rule_refuses() -> None:
    """The value's word would suggest 32 bits, which this rule refuses."""
    with pytest.raises(ValueError, match=r"^x=32bit: choose a whole number from 1 to 8$"):
        check_value("x", "32bit", Rule(kinds=("whole number",), low=1, high=8))
