"""A finished run's files, damaged in every way, are refused in one line and never used."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, Damage, one_line
from training_jobs import tiny_run, train_all_virtually

from gradwire.codecs.decision_file import MOST_BYTES, read_decisions
from gradwire.codecs.registry import make_codec
from gradwire.harness.config.network_checks import check_links
from gradwire.harness.library.decisions import check_given_decisions
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.record.gradients import read_gradients
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.seal import check_sealed_decisions, mark_done
from gradwire.harness.record.timed_steps import recorded, timed_steps
from gradwire.harness.report.tables import finished
from gradwire.harness.studies.statistics.evolution import describe
from gradwire.harness.studies.statistics.study import StatisticsConfig
from gradwire.harness.timing.simulate.codec_times import read_bench_times

MOST_S, MOST_MEMORY = 5.0, 500 * 2**20
CODEC = {"window": 2, "alpha": 1, "max_rank": 4}
RUN = (
    *("cluster=virtual", "cluster.workers=2", "network=simulated", "codec=edgc", "train.log_every=1"),
    *("codec.window=2", "codec.alpha=1", "codec.max_rank=4", "measure.entropy_every=1"),
    *("measure.save_gradients_at=[1,3]", "train.steps=6"),
)
GRADIENTS, TRACE = "gradients/step3.safetensors", "trace/rank0.arrows.zst"

Place = Callable[[Path, Path], None]
"""Puts something in the place of the file at the first path, a copy of which is at the second."""


def replayed(run: Path) -> Any:
    found = read_decisions(str(run / "decisions.jsonl"))
    check_sealed_decisions(found)
    make_codec("edgc", decisions=str(run / "decisions.jsonl"), **CODEC)
    return [found.decision(step) for step in range(1, found.num_steps + 1)]


def benched(run: Path) -> Any:
    network = check_links(SimulatedConfig(codec_times=str(run / "bench.json")))
    return read_bench_times(network.codec_times, make_codec("bf16"), 2)


def timed(run: Path) -> Any:
    """The steps of a trace; raises ValueError where it is damaged after some of them."""
    if (damage := recorded(load_run(run)).damage) is not None:
        raise ValueError(damage)
    return list(timed_steps(run))


OF_ALL_READERS = ("config.yaml", "run.json", "steps.jsonl", "evals.jsonl", "summary.json", "DONE")

READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys(OF_ALL_READERS, load_run),
    "decisions.jsonl": replayed,
    "entropies.jsonl": lambda run: describe(run, StatisticsConfig(window=2), 0).to_json({}),
    "bench.json": benched,
    GRADIENTS: lambda run: read_gradients(run / GRADIENTS).values.tolist(),
    TRACE: timed,
}
"""The reader of each file."""


def _huge(path: Path, copy: Path) -> None:
    path.write_bytes(copy.read_bytes())
    os.truncate(path, 2**40)


def _digit(path: Path, copy: Path) -> None:
    """Another last digit in the middle line, or the next one that has any."""
    lines = copy.read_bytes().splitlines(keepends=True)
    middle = range(len(lines) // 2, len(lines))
    at = next(number for number in middle if re.search(rb"\d", lines[number]))
    lines[at] = re.sub(rb"\d(?=\D*$)", lambda found: b"%d" % ((int(found[0]) + 1) % 10), lines[at])
    path.write_bytes(b"".join(lines))


def _numbers_become(text: bytes) -> Place:
    return lambda path, copy: _write(path, re.sub(rb"\d+(?=[,\]}])", text, copy.read_bytes()))


def _damaged(damage: Damage) -> Place:
    return lambda path, copy: _write(path, damage(copy.read_bytes(), b"{}\n"))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


PLACES: dict[str, Place] = {
    "nothing": lambda path, copy: None,
    "a pipe": lambda path, copy: os.mkfifo(path),
    "a device": lambda path, copy: path.symlink_to("/dev/zero"),
    "made up": lambda path, copy: path.symlink_to("/proc/self/environ"),
    "a link": lambda path, copy: path.symlink_to(copy),
    "a folder": lambda path, copy: path.mkdir(),
    "huge": _huge,
    "a digit": _digit,
    "no numbers": _numbers_become(b"NaN"),
    "texts": _numbers_become(b'"x"'),
    **{name: _damaged(damage) for name, damage in DAMAGES.items()},
}

SAID = {("DONE", "nothing"), (TRACE, "cut")}
"""A run without `DONE` is unfinished, and says so; what is left of a trace are whole steps."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with all that a record may have, among it what `task=bench` leaves."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_all_virtually(tiny_run(*RUN), str(folder))
    rows = [
        {"dtype": "float32", "numel": 1000, "copy_bytes_per_s": 1e9, "implementation": "cpu"}
        | {"operation": name, "times": {"shortest_s": 1e-6}}
        for name in ("mxfp.copy.8", "mxfp.add.8")
    ]
    (folder / "bench.json").write_text(json.dumps({"device": "cpu", "rows": rows}) + "\n")
    mark_done(folder)
    return folder


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MOST_MEMORY


@pytest.mark.parametrize("name", READERS)
def test_no_damage_is_taken_for_the_record(name: str, whole: Path, tmp_path: Path) -> None:
    read, directory, taken = READERS[name], tmp_path / "run", []
    shutil.copytree(whole, directory)
    whatever = repr(read(directory))
    for damage, put in PLACES.items():
        path = directory / name
        path.unlink(missing_ok=True)
        put(path, whole / name)
        begun = time.process_time()
        try:
            if repr(read(directory)) != whatever and (name, damage) not in SAID:
                taken.append(damage)
        except ValueError as refusal:
            one_line(str(refusal))
            assert path.name in str(refusal) or "DONE" in str(refusal) or "trace" in str(refusal), damage
        assert time.process_time() - begun < MOST_S, damage
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert not taken


@pytest.mark.parametrize("damage", PLACES)
def test_decisions_outside_of_a_run_are_refused_in_a_line_or_are_decisions(
    damage: str, whole: Path, tmp_path: Path
) -> None:
    """A changed digit there cannot be noticed; anything but a number is."""
    PLACES[damage](tmp_path / "given.jsonl", whole / "decisions.jsonl")
    option = f"codec.decisions={tmp_path / 'given.jsonl'}"
    begun = time.process_time()
    try:
        make_codec("edgc", decisions=str(tmp_path / "given.jsonl"), **CODEC)
        assert damage in ("a link", "a digit", "a bit in the middle", "a bit near the end"), "taken"
    except ValueError as refusal:
        one_line(str(refusal))
        assert str(refusal).startswith(option)
    assert time.process_time() - begun < MOST_S


def test_a_script_looks_at_the_seal_of_decisions(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "decisions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], lines[-1].replace('"zeros": [', '"zeros": [0.5, ', 1)]))
    lines[-1] = lines[-1].replace('"backward_s": 0.0', '"backward_s": 1.0')
    with pytest.raises(ValueError, match=r"line \d+: its lists are of different lengths"):
        make_codec("edgc", decisions=str(path), **CODEC)
    path.write_text("".join(lines))
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    for given in (path, link):
        codec = make_codec("edgc", decisions=str(given), **CODEC)
        with pytest.raises(ValueError, match="differs from its digest in DONE"):
            check_given_decisions(codec, {})


def test_what_an_unfinished_run_has_recorded_says_so(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "DONE").unlink()
    settings = StatisticsConfig(window=2)
    assert "of an unfinished run" in describe(tmp_path / "run", settings, 0).heading
    assert "unfinished" not in describe(whole, settings, 0).heading


def test_a_file_of_decisions_has_a_longest_line_and_length(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"steps": null, "settings": {}}\n' + b" " * 2**20 + b"\n")
    with pytest.raises(ValueError, match="line 2 is longer than any line of a file of decisions"):
        read_decisions(str(path))
    os.truncate(path, MOST_BYTES + 1)
    with pytest.raises(ValueError, match=f"at most {MOST_BYTES} are read"):
        read_decisions(str(path))


def test_a_comparison_leaves_out_what_was_changed(whole: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "changed", tmp_path / "whole"]
    for folder in folders:
        shutil.copytree(whole, folder)
    _digit(folders[0] / "summary.json", whole / "summary.json")
    done, left_out = finished(folders)
    assert done == folders[1:] and len(left_out) == 1
    assert left_out[0].startswith("changed: left out, ") and "differs from its digest in DONE" in left_out[0]
