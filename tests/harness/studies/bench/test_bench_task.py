"""`task=bench`: the figures it derives, what it writes, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.codecs.native import choice
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library
from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import PLOTS
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.bench import measure, operation
from gradwire.harness.studies.bench.host import Buckets, HostRow, Watch, host_row
from gradwire.harness.studies.bench.measure import BenchPiece, Measuring, pieces, time_on_cpu
from gradwire.harness.studies.bench.operation import Case, chosen_operations
from gradwire.harness.studies.bench.papers import PAIRS, RINGS, ring_costs, smoothing
from gradwire.harness.studies.bench.study import STUDY as BENCH
from gradwire.harness.studies.bench.study import BenchRow, Times
from gradwire.harness.studies.bench.task import FILE, Kept, _settings
from gradwire.harness.studies.bench.views import text
from gradwire.harness.studies.study import TABLES

NUMEL = 1000


def row(
    operation: str, bytes_read: int = 0, bytes_written: int = 0, seconds: float = 1e-6, **other: Any
) -> BenchRow:
    times = Times(seconds, 2 * seconds, 3, "thread CPU")
    about = {
        "dtype": "float32",
        "numel": NUMEL,
        "implementation": "cpu",
        "threads": 1,
        "value_bytes": 4 * NUMEL,
    }
    return BenchRow(operation, times=times, bytes_read=bytes_read, bytes_written=bytes_written,
               **{**about, "copy_bytes_per_s": 8e9, **other})  # fmt: skip


def buckets(codec: str, workers: int) -> Buckets:
    """Small ones."""
    return Buckets(codec, workers, 3000, 0, torch.device("cpu"))


def test_figures_of_a_row() -> None:
    found = row("a.b", 4000, 1000, default_s=5e-6, peers_s={"other": 2e-6})
    assert found.ns_per_coordinate == pytest.approx(1)
    assert found.values_gb_per_s == pytest.approx(4)
    assert found.bytes_per_coordinate == 5
    assert found.share_of_copy == pytest.approx(5 / 8)
    assert found.speedup == pytest.approx(5)
    assert found.speedup_to_peers == {"other": pytest.approx(2)}
    assert found.as_json()["times"]["median_s"] == pytest.approx(2e-6)


def test_bytes_are_those_of_the_tensors() -> None:
    x, message = torch.zeros(100), torch.zeros(50, dtype=torch.uint8)
    case = Case(lambda: None, (x, message), (x,))
    assert (case.bytes_read, case.bytes_written) == (450, 400)


def test_a_call_is_repeated_for_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    times = time_on_cpu(lambda: calls.append(torch.get_num_threads()), seconds=0, threads=2)
    assert (times.repeats, times.clock) == (measure.FEWEST, "wall")
    assert calls == [2] * (measure.FEWEST + 1), "the first one is not counted"
    assert torch.get_num_threads() == 1
    assert time_on_cpu(lambda: None, seconds=0.01, threads=1).repeats > measure.FEWEST
    monkeypatch.setattr(measure, "MOST", 7)
    assert time_on_cpu(lambda: None, seconds=60, threads=1).repeats == 7


def test_the_cost_of_a_ring() -> None:
    """Statistics 4, first hop 5, other hops 7, decompression 5: DynamiQ's Table 2 with our kernels' bytes."""
    sizes = {"always": 4, "first": 5, "hops": 7}
    (ring,) = (ring for ring in RINGS if ring.paper == "DynamiQ")
    rows = [
        row(name, NUMEL * size, seconds=1e-6 * size)
        for part, size in sizes.items()
        for name in getattr(ring, part)
    ]
    (cost,) = ring_costs(rows)
    always = 4 * len(ring.always)
    assert (cost.bytes_const, cost.bytes_slope) == (always + 5, 2)
    assert cost.ns_const == pytest.approx(always + 5)
    assert (cost.paper_const, cost.paper_slope) == (22, 11.875)
    at = cost.at(8)
    assert at["bytes"] == pytest.approx(always + 5 + 2 * 7 / 8)
    assert at["paper_bytes"] == pytest.approx(22 + 11.875 * 7 / 8)
    assert not ring_costs(rows[1:]), "a ring with an operation that was not measured has no cost"
    assert "22.00 + 11.88 AR" in text(rows, 8)


def test_what_the_transform_costs() -> None:
    plain, smooth = PAIRS["quantize"]
    (found,) = smoothing([row(plain, 1, seconds=1e-6), row(smooth, 1, seconds=1.25e-6)])
    assert found.share == pytest.approx(0.8)
    assert (found.paper_without, found.paper_with) == (688.6, 688.6)


def test_peers_that_are_missing_are_left_out() -> None:
    x = torch.randn(1024)
    assert operation.TORCHAO.make(x) is None
    assert operation.deepspeed_quantizer(4, 128).make(x) is None
    cast = operation.TORCH_CAST.make(x)
    assert cast is not None
    cast()


Config = Callable[..., Any]
SHORT = (
    "bench.seconds=0",
    "bench.sizes=[3000]",
    "bench.operations=[dynamiq.statistics,mxfp.maxima,mxfp.*8]",
    "bench.workers=[2]",
    "bench.codecs=[bf16]",
    "bench.bucket=3000",
    "bench.ranks=[]",
)


def config(*overrides: str) -> Any:
    return validate_any(compose(["task=bench", "cluster.device=cpu", *SHORT, *overrides]))


def test_the_command_measures_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = config("kernels=default", "seed=3", "bench.threads=[1,2]")
    assert run_name(asked).startswith("bench-default-cpu-")
    assert BENCH.run(asked, tmp_path) == 0
    found = json.loads((tmp_path / BENCH.record.file).read_text())
    assert (found["kernel_backend"], found["device"], found["seed"]) == ("default", "cpu", 3)
    assert {"commit", "machine", "cpu_level", "driver", "date", "code_hash"} <= found.keys()
    measured = {(each["operation"], each["dtype"], each["implementation"]) for each in found["rows"]}
    assert ("mxfp.quantize.8", "bfloat16", "torch float8_e4m3fn cast") in measured
    assert {name for _, _, name in measured if "torch" not in name} == {"default"}
    assert all(each["times"]["shortest_s"] > 0 for each in found["rows"])
    assert [cost["codec"] for cost in found["ring"]] == ["mxfp8"] * 2
    for form in ("print.svg", "print.png", "dark.png"):
        assert (tmp_path / PLOTS / f"mxfp-3000-{form}").exists()
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / TABLES).read_text())
    assert BENCH.run(asked, tmp_path) == 0
    assert capsys.readouterr().out.startswith("already finished: ")


def test_compiled_kernels_next_to_the_definition(tmp_path: Path) -> None:
    if "cpu" not in choice.available_kernels():
        pytest.skip("the kernels for CPUs are not built")
    asked = config("bench.threads=[1,2]", "bench.operations=[dynamiq.statistics]", "bench.dtypes=[float32]")
    assert asked.kernels.name == "cpu"
    BENCH.run(asked, tmp_path)
    rows = json.loads((tmp_path / BENCH.record.file).read_text())["rows"]
    assert [(each["implementation"], each["threads"]) for each in rows] == [
        ("default", 1),
        ("cpu", 1),
        ("cpu", 2),
    ]
    assert rows[0]["speedup"] == 1


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["bench.operations=[nothing]"], ["bench.operations", "nothing", "dynamiq.*"]),
        (["bench.operations=[]"], ["bench.operations=[]", "at least one"]),
        (["bench.sizes=[0]"], ["bench.sizes=[0]", "from 1 to"]),
        (["bench.sizes=7"], ["bench.sizes", "list"]),
        (["bench.threads=[1.5]"], ["bench.threads=[1.5]", "whole number"]),
        (["bench.dtypes=[float16]"], ["bench.dtypes=[float16]", "float32, bfloat16"]),
        (["bench.seconds=-1"], ["bench.seconds=-1", "0 to 60"]),
        (["bench.codecs=[powersgd]"], ["bench.codecs", "powersgd", "leave it out"]),
        (["bench.codecs=[nothing]"], ["bench.codecs", "nothing"]),
        (["bench.ranks=[1]"], ["bench.ranks=[1]", "from 2 to"]),
        (["bench.workers=[1]"], ["bench.workers=[1]", "from 2 to"]),
        (["bench.second=1"], ["bench.second", "bench.seconds"]),
    ],
)
def test_refused_in_one_line(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        config("kernels=default", *overrides)
    assert "\n" not in str(refused.value)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_it_never_measures_the_slow_definition_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available_kernels", lambda: ("default",))
    with pytest.raises(ConfigError, match=r"kernels=auto.*task=bench.*make install.*kernels=default"):
        config()


def test_the_host_works_less_among_fewer_workers() -> None:
    rows = {workers: host_row(buckets("bf16", workers), kernels="auto", seconds=0) for workers in (2, 8)}
    assert rows[2].operations < rows[8].operations
    assert all(row.host_s > 0 for row in rows.values())
    assert "bf16" in text([], 8, list(rows.values()))


def test_operations_and_calls_are_those_of_one_rank_without_its_messages() -> None:
    small = Buckets("fp32", 2, 64, 0, torch.device("cpu"))
    with using_kernels("default"):
        for _ in range(2):
            small.round(Watch())
        watch = Watch(counts=True)
        mean = small.round(watch)
    assert watch.calls == 0 and mean.shape == (64,)
    assert 0 < sum(watch.operations.values()) < 40
    if library("cpu") is not None:
        row = host_row(buckets("dynamiq", 2), kernels="cpu", seconds=0)
        assert row.calls > 0 < row.kernels_s


def test_what_no_clock_has_seen_is_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU time of a short call may be 0; then nothing follows from it, and the rest is there."""
    monkeypatch.setattr(
        measure, "time_on_cpu", lambda run, seconds, threads: Times(0.0, 0.0, 3, "thread CPU")
    )
    assert BENCH.run(config("kernels=default"), tmp_path) == 0
    found = json.loads((tmp_path / BENCH.record.file).read_text())
    for each in found["rows"]:
        assert each["copy_bytes_per_s"] is None and set(each["speedup_to_peers"].values()) <= {None}
        figures = {key: each[key] for key in BenchRow.columns()}
        assert {key for key, value in figures.items() if value is not None} == {"bytes_per_coordinate"}
    assert [cost["ns_const"] for cost in found["ring"]] == [None, None]
    assert " – " in (tmp_path / TABLES).read_text()
    assert (tmp_path / PLOTS / "mxfp-3000-print.svg").exists()


def test_an_interrupted_bench_continues_from_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured twice; a line that a killed writer has left is; other code measures all anew."""
    asked, measured, most = config("kernels=default", "plots=false"), list[str](), 2

    def interrupted(self: Measuring, piece: BenchPiece) -> list[BenchRow]:
        if len(measured) == most:
            raise KeyboardInterrupt
        measured.append(piece.operation.name)
        return rows_of(self, piece)

    rows_of = Measuring.rows
    monkeypatch.setattr(Measuring, "rows", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            BENCH.run(asked, tmp_path)
        with (tmp_path / FILE).open("a") as file:
            file.write('{"key": ["operation", "mxfp.ma')
        most += 1
    first = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()[1:3]]
    most = 1000
    assert BENCH.run(asked, tmp_path) == 0
    assert "resuming after 3 pieces of work" in capsys.readouterr().out
    assert len(measured) == len(pieces(chosen_operations(asked.bench.operations), _settings(asked)))
    found = json.loads((tmp_path / BENCH.record.file).read_text())["rows"]
    (row,) = first[0]["rows"][:1]
    assert found[0]["times"] == row["times"], "the same measurement"
    assert not (tmp_path / FILE).exists()


def test_other_code_measures_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_a_bucket = HostRow("bf16", "default", 2, 3000, 5, 0, 1e-3, 0.0)
    key = ("bucket", "bf16", 2)
    Kept(tmp_path, {"code_hash": "a"}).rows(HostRow, key, lambda: [of_a_bucket])

    def again(**about: str) -> list[HostRow]:
        return Kept(tmp_path, about).rows(HostRow, key, list)

    assert again(code_hash="a") == [of_a_bucket]
    assert again(code_hash="b") == []
    assert "measuring anew" in capsys.readouterr().out
