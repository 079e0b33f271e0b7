"""Commands of the documentation: read from blocks of code, and checked without running them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

from pages import ROOT, SHELL, blocks, prose, spans

from gradwire.harness.config import validate
from gradwire.harness.config.compose import compose, prepare
from gradwire.harness.config.declared import declared_in
from gradwire.harness.config.flags import read_flags
from gradwire.harness.models import folder
from gradwire.harness.network.shaped import check as shaped
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.cells import expand
from gradwire.harness.sweeps.plan import plan_sweep
from gradwire.harness.tasks import front
from gradwire.harness.tasks.front import check_command_line

LEFT_ALONE = {
    "git": "needs a repository to clone from",
    "cd": "nothing that is checked here depends on it",
    "source": "activates an environment",
    "export": "sets a variable of the shell",
    "pip": "needs a network; the tests of the installation do it",
    "sbatch": "needs SLURM",
}
"""First words of commands that are not checked further, and why."""

TAKEN_FOR_GRANTED = (
    (validate, "weights_available", lambda model: None),  # the hub
    (validate, "check_memory", lambda config: None),  # for the real models
    (validate, "tokenizer_available", lambda model: None),
    (validate, "dataset_available", lambda dataset, model: None),
    (folder, "_of_hub", lambda name, fetch: None),
    (shaped, "why_not", lambda: None),  # root on Linux
    (front, "check_launcher", lambda name, srun: None),  # SLURM
)
"""The things that commands need and a test machine may lack: module, name of the check, stand-in."""

REPLACED = {
    "outputs/<run>": "run",
    "[outputs/<run>,outputs/<another>]": "run",
    "[outputs/<run>/gradients/step0.safetensors,outputs/<run>/gradients/step1.safetensors]": "row",
    "my.npz": "gradients",
    "my_text/": "text",
    "my-llm/": "model",
    "benchmarks/": "benchmarks",
    "mmlu/": "mmlu",
    "glue/": "glue",
}
"""Placeholders for the reader's files, and the files of ours that replace them."""

IN_PROSE = re.compile(r"(sudo )?(\.venv/bin/)?python run\.py \S|(gradwire|make|torchrun) \S")
"""The beginnings of commands in inline code."""

Files = Mapping[str, Path]


@dataclass(frozen=True)
class Command:
    """One command: its words, without variables before and comments after it."""

    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"line {self.line}: {shlex.join(self.words)}"


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page: in shell blocks, with the line their block begins at, and in its prose."""
    for block in blocks(page):
        if block.language in SHELL:
            yield from commands_of(block.text, block.line)
    for span in spans(prose(page)):
        if IN_PROSE.match(span) and "…" not in span and "..." not in span:
            yield from commands_of(span, line=0)


def commands_of(text: str, line: int = 1) -> Iterator[Command]:
    for one in text.replace("\\\n", " ").splitlines():
        if re.match(r"\w+=\$\(", one):  # a variable of the shell, from a command of the cluster's
            continue
        words: list[str] = []
        for word in [*shlex.split(one.removeprefix("$ "), comments=True), "&&"]:
            if word != "&&":
                words.append(word)
            elif words := _bare(words):
                yield Command(line, tuple(words))
                words = []


def _bare(words: Sequence[str]) -> list[str]:
    """The words without variables and `sudo` before the command."""
    first = next(
        (i for i, word in enumerate(words) if not re.fullmatch(r"sudo|[A-Z_]+=\S*", word)), len(words)
    )
    return list(words[first:])


def fault(command: Command, files: Files) -> str | None:
    """The reason why a reader could not run the command; None if they could."""
    try:
        _check(list(command.words), files)
    except (ConfigError, AssertionError, SystemExit) as error:
        return f"{command}: {error}"
    return None


def _check(words: list[str], files: Files, ranks: int | None = None) -> None:
    first, rest = words[0], words[1:]
    if first in LEFT_ALONE:
        return
    assert first in KINDS, f"{first}: add a check of such commands, or a reason to leave them alone"
    KINDS[first](rest, files, ranks)


def _check_python(words: list[str], files: Files, ranks: int | None) -> None:
    if words[:2] == ["-m", "gradwire"]:
        _check_run(words[2:], files, ranks)
    elif words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, f"no module {words[1]}"
    elif words[0] == "run.py":
        _check_run(words[1:], files, ranks)
    else:
        assert (ROOT / words[0]).is_file(), f"no file {words[0]}"


def _check_torchrun(words: list[str], files: Files, ranks: int | None) -> None:
    from torch.distributed.run import get_args_parser

    flags = get_args_parser().parse_args(words)
    numbers = [int(text) if str(text).isdigit() else 2 for text in (flags.nproc_per_node, flags.nnodes)]
    script = [*(["-m"] if flags.module else []), flags.training_script, *flags.training_script_args]
    _check_python(script, files, numbers[0] * numbers[1])


def _check_accelerate(words: list[str], files: Files, ranks: int | None) -> None:
    from accelerate.commands.launch import launch_command_parser

    assert words[0] == "launch", f"accelerate {words[0]}: only launch is checked"
    flags = launch_command_parser().parse_args(words[1:])
    script = [*(["-m"] if flags.module else []), flags.training_script, *flags.training_script_args]
    _check_python(script, files, flags.num_processes or 1)


def _check_srun(words: list[str], files: Files, ranks: int | None) -> None:
    """Checks the command that srun starts; srun is not installed here, so its own flags are not checked."""
    tasks = [int(found[1]) for word in words if (found := re.fullmatch(r"--ntasks=(\d+)", word))]
    started = next((index for index, word in enumerate(words) if word in KINDS), None)
    assert started is not None, "srun starts nothing that can be checked"
    _check(words[started:], files, tasks[0] if tasks else None)


def _check_make(words: list[str], files: Files, ranks: int | None) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        variable, assigned, _ = word.partition("=")
        pattern = rf"^{variable} *[?:]?=|\$\({variable}\)" if assigned else rf"^{word}:"
        assert re.search(pattern, makefile, re.MULTILINE), f"the Makefile has no {variable}"


def _check_pytest(words: list[str], files: Files, ranks: int | None) -> None:
    missing = [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()]
    assert not missing, f"no {missing}"


Check = Callable[[list[str], Files, int | None], None]


def _check_run(arguments: list[str], files: Files, ranks: int | None) -> None:
    _check_arguments(tuple(replaced(arguments, files)), ranks)


@cache
def _check_arguments(arguments: tuple[str, ...], ranks: int | None) -> None:
    """Composes and validates, once for all pages; for a sweep its first and last cell."""
    with well_equipped_machine(ranks):
        prepare()
        check_command_line(arguments)
        if "--multirun" in arguments or any(word.startswith("sweeps=") for word in arguments):
            _check_sweep(read_flags(arguments).overrides)


def _check_sweep(overrides: list[str]) -> None:
    single = [word for word in overrides if not re.search(r",|\(", word.partition("=")[2])]
    hydra = compose(single, with_hydra=True).hydra
    declared = declared_in(hydra)
    if declared.needs:
        assert len(plan_sweep(hydra, overrides).cells) > 1, "a sweep of one run"
        return
    cells = expand(declared, hydra.runtime.choices["size"], overrides)
    assert len(cells) > 1, "a sweep of one run"
    for cell in (cells[0], cells[-1]):
        validate.validate_any(compose(cell.overrides))


def replaced(arguments: Sequence[str], files: Files) -> list[str]:
    """Arguments with our files in the place of the reader's."""
    pairs = [argument.partition("=")[::2] for argument in arguments]
    found = [f"{key}={files[REPLACED[value]]}" for key, value in pairs if value in REPLACED]
    kept = [argument for argument in arguments if argument.partition("=")[2] not in REPLACED]
    blank = [argument for argument in kept if "<" in argument]
    assert not blank, f"{blank[0]}: nothing stands for this blank"
    return kept + found


@contextmanager
def well_equipped_machine(ranks: int | None = None) -> Iterator[None]:
    """Pretends for a check that this machine has what commands need, and that a launcher started `ranks`."""
    with ExitStack() as patches:
        for module, question, answer in TAKEN_FOR_GRANTED:
            patches.enter_context(mock.patch.object(module, question, answer))
        if ranks is not None:
            launched = {
                "RANK": "0",
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
            }
            patches.enter_context(mock.patch.dict("os.environ", launched))
        yield


KINDS: dict[str, Check] = {
    "python": _check_python,
    "python3": _check_python,
    ".venv/bin/python": _check_python,
    "gradwire": _check_run,
    "torchrun": _check_torchrun,
    "accelerate": _check_accelerate,
    "srun": _check_srun,
    "make": _check_make,
    "pytest": _check_pytest,
}
"""The checks of commands, by their first word."""
