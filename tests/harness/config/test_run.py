"""`run.py` itself: one run, its directory, its help, and what it does not print."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from warm import run_command

from gradwire.harness.files.writing import UnwritableFileError
from gradwire.harness.launch.processes import is_expected
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError

ROOT = conf_directory().parent


def test_one_run_writes_only_its_directory(run_py: Callable[..., int], task: Any, tmp_path: Path) -> None:
    assert run_py("size=tiny", "codec=bf16") == 0
    ((config, directory),) = task.ran
    assert directory.parent == Path("outputs")
    assert config.codec["name"] == "bf16"
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / directory}


def test_the_run_directory_can_be_replaced(run_py: Callable[..., int], task: Any, tmp_path: Path) -> None:
    assert run_py("size=tiny", "hydra.run.dir=here/it/is") == 0
    assert task.ran[0][1] == Path("here/it/is")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (0, 0, ""),
        (5, 5, ""),
        (ConfigError("mend\nthis"), 2, "error: mend this\n"),
        (ValueError("a library's\nown"), 1, "error: ValueError: a library's own\n"),
    ],
)
def test_the_exit_code_is_the_tasks(
    outcome: BaseException | int,
    code: int,
    line: str,
    run_py: Callable[..., int],
    task: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task.failing = {0: outcome}
    assert run_py("size=tiny") == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a"), True),
        (UnwritableFileError(Path("a"), "No such file or directory", errno.ENOENT), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), False),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), False),
        (ConnectionError("the network's"), False),
    ],
)
def test_which_errors_of_the_system_a_line_is_enough_for(error: OSError, expected: bool) -> None:
    assert is_expected(error) == expected


def test_bugs_that_are_errors_of_the_system_show_where_they_came_from(
    run_py: Callable[..., int], task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    full, broken = OSError(errno.ENOSPC, "No space left on device"), BrokenPipeError(errno.EPIPE, "Broken")
    task.failing = {0: full, 1: broken}
    assert run_py("size=tiny", "seed=0,1", "--multirun") == 1
    printed = capsys.readouterr()
    assert f"error: {full}\n" in printed.out
    assert str(full) not in printed.err
    assert str(broken) not in printed.out
    assert "Traceback" in printed.err and f"BrokenPipeError: {broken}" in printed.err
    assert run_py("size=tiny", "seed=1") == 1
    assert f"BrokenPipeError: {broken}" in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "lines"), [(None, 1), ("0", 1), ("1", 0)])
def test_a_refusal_is_one_line_of_rank_0(
    rank: str | None,
    lines: int,
    run_py: Callable[..., int],
    task: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_py("size=tiny", "codec=dynamic") == 2
    printed = capsys.readouterr()
    assert not task.ran
    assert printed.out == ""
    assert len(printed.err.splitlines()) == lines


def test_a_sweep_of_one_refuses_a_key_of_another_choice_in_one_line(
    run_py: Callable[..., int], task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_py("size=tiny", "codec=bf16", "--multirun", "codec.bits=3") == 2
    printed = capsys.readouterr()
    assert not task.ran
    assert printed.out == ""
    assert printed.err.startswith("error: codec.bits=3: unknown key codec.bits; codec=dynamiq")
    assert len(printed.err.splitlines()) == 1


def test_other_ranks_make_no_directory(
    run_py: Callable[..., int], task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(task, "run", lambda *_: 0)
    assert run_py("size=tiny", "hydra.run.dir=here") == 0
    assert not list(tmp_path.iterdir())


def test_cfg_prints_the_configuration(run_py: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_py("size=tiny", "codec.bits=4", "--cfg", "job") == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["codec"]["bits"] == 4
    assert "hydra" not in printed


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_help_reads_like_a_manual(tmp_path: Path) -> None:
    finished = call("--help", "all", cwd=tmp_path)
    assert finished.returncode == 0
    assert finished.stderr == ""
    assert not list(tmp_path.iterdir())
    for path in conf_directory().glob("[!h]*/*.yaml"):
        assert f" {path.stem} " in finished.stdout
    for part in (
        "python run.py sweeps=demo size=tiny",
        "outputs/",
        "hydra.run.dir=",
        "codec.bits",
        "size=paper",
    ):
        assert part in finished.stdout
    assert "$" not in finished.stdout
    assert "schema" not in finished.stdout.replace("schemas.py", "")


def test_a_typing_error_is_one_line_without_traceback(tmp_path: Path) -> None:
    finished = run_command(tmp_path, "size=tiny", "codec=dynamic")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("error: codec=dynamic")
    assert finished.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_the_package_run_py_says_how_to_get_it(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "run.py"), "size=tiny"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "make" in finished.stderr
    assert finished.stderr.count("\n") == 1
