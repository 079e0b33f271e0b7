"""The command line from start to end: local workers, torchrun, the virtual cluster, and refusals."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command import RUN, TINY, TORCHRUN, call, call_cold, errors, finished, started

from gradwire.harness.record.summary import Summary

SAME = ("loss", "grad_norm", "vnmse", "bytes_sent", "perplexity")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs."""
    folder = tmp_path_factory.mktemp("command") / "work"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def local(here: Path) -> tuple[CompletedProcess[str], Path]:
    """A run with two local workers, and its directory; no other is made."""
    ran = call_cold(here, RUN, *TINY, "cluster.workers=2")
    assert ran.returncode == 0, ran.stderr
    (directory,) = (here / "outputs").iterdir()
    assert [path.name for path in here.iterdir()] == ["outputs"]
    return ran, directory


def rows(directory: Path) -> list[dict[str, Any]]:
    lines = [
        line for name in ("steps", "evals") for line in (directory / f"{name}.jsonl").read_text().splitlines()
    ]
    return [{key: value for key, value in json.loads(line).items() if key in SAME} for line in lines]


def test_a_run_leaves_what_is_documented(local: tuple[CompletedProcess[str], Path]) -> None:
    ran, directory = local
    assert ran.stdout.splitlines()[-1] == f"run: outputs/{directory.name}"
    assert not errors(ran.stderr)
    files = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert files >= {"config.yaml", "steps.jsonl", "evals.jsonl", "summary.json", "DONE"}
    assert files >= {"checkpoint/model.safetensors", "checkpoint/config.json", "plots/metric-print.png"}
    assert not files & {"FAILED", "tracebacks.txt"}
    assert not [name for name in files if name.startswith(".")], "a temporary file is left"
    summary = Summary.from_json((directory / "summary.json").read_text())
    figures = {"compute_s", "compression_s", "exposed_comm_s", "other_s", "overlap_s", "wait_s", "row", "osf"}
    observed = {"compute_cpu_s", "compute_cpu_share", "codec_cpu_s", "worker_cpu_s", "switches"}
    assert set(summary.figures) >= figures | {"utilization"} | observed
    keys = set(json.loads((directory / "summary.json").read_text()))
    assert keys == {*Summary.__dataclass_fields__, *summary.figures} - {"figures"}
    assert (summary.steps, summary.workers, summary.clock) == (2, 2, "wall")
    assert summary.bytes_sent_per_rank[0] > 0


def test_nobody_has_to_read_its_lines(tmp_path: Path) -> None:
    """If the reader ends, as `head` does, a run continues, ranks that print included; a page ends."""
    run = started(tmp_path, RUN, *TINY, "cluster.workers=2", "plots=false", "hydra.run.dir=unread")
    page = started(tmp_path, RUN, "--help")
    for process in (run, page):
        assert process.stdout is not None
        process.stdout.close()
    told = {process: process.stderr.read() for process in (run, page) if process.stderr is not None}
    assert (run.wait(60), page.wait(60)) == (0, 0), told
    (line,) = [line for line in told[run].splitlines() if "standard output" in line]
    lost = "standard output cannot be written (Broken pipe)"
    assert line == f"warning: {lost}: the run continues without its lines"
    assert (tmp_path / "unread" / "DONE").exists()
    assert told[page] == ""


def test_a_finished_run_is_shown_again(local: tuple[CompletedProcess[str], Path], here: Path) -> None:
    """It is shown again, too, if `hydra.run.dir=.` names its directory from inside."""
    ran, directory = local
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    processes = [
        started(here, RUN, *TINY, "cluster.workers=2"),
        started(directory, RUN, *TINY, "cluster.workers=2", "hydra.run.dir=."),
    ]
    for process, last in zip(processes, (ran.stdout.splitlines()[-1], "run: ."), strict=True):
        again = finished(process)
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith("already finished: ")
        assert again.stdout.splitlines()[-1] == last
        (result,) = [line for line in ran.stdout.splitlines() if line.startswith("perplexity ")]
        assert result in again.stdout.splitlines()
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_local_and_virtual_workers_give_the_same_numbers(
    local: tuple[CompletedProcess[str], Path], here: Path
) -> None:
    """torchrun's workers give them, too: see `test_resumed_commands.py`."""
    ran = call(here, RUN, *TINY, "cluster=virtual", "cluster.workers=2", "hydra.run.dir=virtual")
    assert ran.returncode == 0, ran.stderr
    assert rows(local[1]) == rows(here / "virtual")
    assert sorted(path.name for path in here.iterdir()) == ["outputs", "virtual"]
    assert len(list((here / "outputs").iterdir())) == 1


def refusals(folder: Path) -> list[tuple[tuple[str, ...], dict[str, str], list[str]]]:
    """Arguments, environment, and what the error names."""
    (folder / "short.txt").write_text("Too short to cut a single sequence from.\n")
    (folder / "broken.jsonl").write_text('{"text": "no end\n')
    return [
        (("codec.bits=1", "size=tiny"), {}, ["bits=1"]),
        ((*TINY, "model.weights=pretrained", f"model.path={folder}/none"), {}, ["model.weights=random"]),
        ((*TINY[1:], "size=paper"), {}, ["size=tiny", "dataset.path="]),
        (("size=tiny", f"dataset.path={folder}/short.txt"), {}, ["short.txt"]),
        (("size=tiny", f"dataset.path={folder}/broken.jsonl"), {}, ["broken.jsonl"]),
        (("--multirun", "size=tiny", "codec=bf16,fp32"), {"RANK": "0", "WORLD_SIZE": "2"}, ["python run.py"]),
    ]


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    cases = refusals(tmp_path)
    processes = [started(work, RUN, *given, **environment) for given, environment, _ in cases]
    for process, (given, _, named) in zip(processes, cases, strict=True):
        ended = finished(process)
        assert ended.returncode == 2, (given, ended.stderr)
        assert ended.stderr == f"{errors(ended.stderr)[0]}\n", given
        for part in named:
            assert part in ended.stderr
    assert not list(work.iterdir())


def test_under_torchrun_one_rank_tells(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    text = tmp_path / "short.txt"
    text.write_text("Too short to cut a single sequence from.\n")
    ended = call_cold(work, *TORCHRUN, RUN, "size=tiny", f"dataset.path={text}")
    assert ended.returncode == 1
    assert len(errors(ended.stderr)) == 1
    assert not list(work.iterdir())


def test_ranks_on_machines_of_different_sizes_are_refused_on_all_of_them(tmp_path: Path) -> None:
    """One rank alone on its machine, the other one of two: they would make different schedules, and hang."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1]), "WORLD_SIZE": "2"}
    command = (RUN, *TINY, "topology=two_level")
    ranks = [
        started(tmp_path, *command, RANK=rank, LOCAL_RANK="0", LOCAL_WORLD_SIZE=local, **place)
        for rank, local in (("0", "1"), ("1", "2"))
    ]
    ended = [finished(rank, 120) for rank in ranks]
    assert [each.returncode for each in ended] == [2, 2], ended
    (line,) = errors("".join(each.stderr for each in ended))
    assert line.startswith("error: LOCAL_WORLD_SIZE differs between the ranks: 1 (rank 0), 2 (rank 1); ")
    assert not list(tmp_path.glob("outputs/*/*"))
