"""Codec times from another device's benchmark: figures, refusals, and a time for all of a codec's work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from world_steps import run_collectives

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.studies.bench.operation import all_operations
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.codec_times import CodecTimes, costs_of, read_bench_times
from gradwire.harness.timing.trace.step import Part, Work

RECORDED = Path(__file__).parents[4] / "results" / "bench" / "cpu" / "bench.json"

SMALL, LARGE = 1 << 10, 1 << 20

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dynamiq": [
        {"widths": [4], "bits": None},
        {"widths": [16], "bits": None},
        {"codebooks": 4, "values": "distinct"},
    ],
    "dynamiq_plus": [{"widths": [5], "bits": None}, {"codebooks": 1}],
    "uniform": [{"widths": [8]}],
    "thc": [{"block": 1024}, {"block": 1 << 16, "norm": "bucket"}, {"bits": 10}],
    "qsgd": [{"bits": 4}, {"bits": 2, "norm": "max"}, {"bits": 16}, {"bits": [2, 8]}],
    "tfp": [{"bits": bits, "scale": scale} for bits in (2, 6, 8, 32) for scale in ("block", "all", "none")],
    "omnireduce": [{"bits": 2.0, "block": 32}],
    "lattice": [{"code": "packed"}],
    "linear": [{"bits": 8, "hadamard": "fused"}, {"group": 2048}, {"rounding": "stochastic"}],
    "all_to_all": [{"hadamard": "apart", "group": 512}, {"hadamard": "none", "rounding": "stochastic"}],
}
"""Settings besides the default ones."""

OWN = [name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")]

NOT_BENCHMARKED = [name for name in OWN if make_codec(name).costs(4) is None]

CASES = [
    (name, options) for name in OWN if name not in NOT_BENCHMARKED for options in [{}, *OPTIONS.get(name, [])]
]

every_codec = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))


def row(operation: str, ns: float, numel: int = SMALL, **other: Any) -> dict[str, Any]:
    """A row of `ns` nanoseconds per coordinate, with copies at 10⁹ bytes per second."""
    return {
        "operation": operation,
        "dtype": "float32",
        "numel": numel,
        "implementation": "cuda",
        "threads": 1,
        "times": {"shortest_s": 1e-9 * ns * numel, "median_s": 1.0, "repeats": 3, "clock": "CUDA graph"},
        "copy_bytes_per_s": 1e9,
        **other,
    }


def written(folder: Path, *rows: Mapping[str, Any], device: str = "a GPU") -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps({"device": device, "rows": rows}))
    return path


def mxfp_rows(**other: Any) -> list[dict[str, Any]]:
    """1 to 5 ns for the operations of MXFP8, in the order in which a chunk meets them."""
    names = ("maxima", "quantize.8", "copy.8", "add.8", "dequantize.8")
    return [row(f"mxfp.{name}", ns, **other) for ns, name in enumerate(names, start=1)]


def work(*parts: tuple[str, float]) -> Work:
    return Work(0.0, 9.0, tuple(Part(label, share, 9.0) for label, share in parts))


def ns_of(times: CodecTimes, label: str, coordinates: int = SMALL) -> float:
    """Nanoseconds of a coordinate of a part."""
    return 1e9 * times.seconds(work((label, 1.0)), coordinates) / coordinates


def test_parts_take_what_their_operations_take(tmp_path: Path) -> None:
    times = read_bench_times(written(tmp_path, *mxfp_rows()), make_codec("mxfp8"), 4)
    labels = ("statistics", "plan", "encode", "accumulate", "accumulate_encode", "seal", "decode", "finish")
    found = [ns_of(times, label) for label in labels]
    assert found == pytest.approx([1, 2, 3, 4, 7, 7, 3, 5])
    assert ns_of(times, "collect") == pytest.approx(3 + 3 * 4), "own and three others' messages"
    assert ns_of(times, "metadata") == pytest.approx(16 / 32)


def test_parts_count_by_their_share_and_python_not_at_all(tmp_path: Path) -> None:
    times = read_bench_times(written(tmp_path, *mxfp_rows()), make_codec("mxfp8"), 4)
    assert times.seconds(work(("statistics", 1.0), ("encode", 0.25)), 4000) == pytest.approx(4e-6 + 3e-6)
    assert times.seconds(Work(0.0, 5.0), 4000) == 0
    assert times.seconds(work(("prepare", 1.0)), 4000) == 0, "hashes are compared, off the codec's account"


def test_plain_arithmetic_takes_as_long_as_copies(tmp_path: Path) -> None:
    rows = [row("mxfp.copy.8", 1.0)]
    on_gpu = read_bench_times(written(tmp_path, *rows), make_codec("bf16"), 4)
    assert [ns_of(on_gpu, label) for label in ("plan", "encode", "decode")] == pytest.approx([0, 6, 6])
    assert [ns_of(on_gpu, label) for label in ("accumulate", "accumulate_encode")] == pytest.approx([10, 8])
    assert ns_of(on_gpu, "collect") == pytest.approx(8 + 2 * 10)
    exact = read_bench_times(tmp_path / "bench.json", make_codec("fp32"), 4)
    assert [ns_of(exact, label) for label in ("encode", "accumulate", "seal")] == pytest.approx([8, 12, 12])
    on_cpu = read_bench_times(written(tmp_path, *rows, device="cpu"), make_codec("bf16"), 4)
    assert [ns_of(on_cpu, label) for label in ("accumulate", "encode")] == pytest.approx([10, 6])


def test_the_size_nearest_to_the_bucket_counts(tmp_path: Path) -> None:
    rows = [*mxfp_rows(), *(one | {"copy_bytes_per_s": 5e8} for one in mxfp_rows(numel=LARGE))]
    rows[-1]["times"] = {"shortest_s": 1e-9 * 50 * LARGE}
    times = read_bench_times(written(tmp_path, *rows), make_codec("mxfp8"), 4)
    middle = 1 << 15
    assert [ns_of(times, "finish", each) for each in (1, middle - 1, middle + 1, 1 << 30)] == pytest.approx(
        [5, 5, 50, 50]
    )
    assert ns_of(times, "metadata", LARGE) == pytest.approx(2 * 16 / 32)
    assert 1e9 * times.seconds(work(("finish", 1 / LARGE)), LARGE) == pytest.approx(50), "not the part's size"


def test_the_fastest_compiled_row_counts(tmp_path: Path) -> None:
    def finish(*others: dict[str, Any]) -> float:
        path = written(tmp_path, *mxfp_rows()[:-1], *others)
        return ns_of(read_bench_times(path, make_codec("mxfp8"), 4), "finish")

    def dequantize(ns: float, **other: Any) -> dict[str, Any]:
        return row("mxfp.dequantize.8", ns, **other)

    slow = dequantize(8.0, implementation="default")
    assert finish(slow) == pytest.approx(8)
    assert finish(slow, dequantize(9.0)) == pytest.approx(9), "there is a kernel, slow as it is"
    assert finish(dequantize(4.0), dequantize(3.0, threads=2)) == pytest.approx(3)
    peer = dequantize(0.1, implementation="torch float8_e4m3fn cast back")
    assert finish(slow, peer, dequantize(0.2, dtype="bfloat16")) == pytest.approx(8)


def test_operations_that_were_several_take_what_these_took(tmp_path: Path) -> None:
    older = ("dynamiq.reduced", "dynamiq.allocation", "dynamiq.order")
    own = [row(name, 0.0) for name in ("dynamiq.statistics", *(f"dynamiq.{name}.mix" for name in
           ("compress", "recompress", "accumulate", "decompress")))]  # fmt: skip
    rows = [row(name, ns) for ns, name in enumerate(older, start=1)]
    path = written(tmp_path, *own, *rows)
    assert ns_of(read_bench_times(path, make_codec("dynamiq"), 4), "plan") == pytest.approx(6)
    path = written(tmp_path, *own, *rows, row("dynamiq.plan", 2.5))
    assert ns_of(read_bench_times(path, make_codec("dynamiq"), 4), "plan") == pytest.approx(2.5)


PARTS: list[tuple[str, dict[str, Any], int, str, set[str]]] = [
    ("dynamiq", {}, 4, "plan", {"dynamiq.plan"}),
    ("dynamiq", {}, 4, "accumulate_encode", {"dynamiq.recompress.mix"}),
    ("dynamiq", {}, 4, "seal", {f"dynamiq.{name}.mix" for name in ("accumulate", "compress", "decompress")}),
    ("dynamiq", {"widths": [5], "bits": None}, 4, "encode", {"dynamiq.compress.5"}),
    ("dynamiq_plus", {}, 4, "decode", {"dynamiq_plus.decompress.mix"}),
    ("dynamiq_plus", {"widths": [3], "bits": None}, 4, "encode", {"dynamiq_plus.compress.4"}),
    ("dynamiq_plus", {"codebooks": 1}, 4, "encode", {"dynamiq.compress.mix"}),
    ("uniform", {}, 4, "accumulate", {"dynamiq.accumulate.4"}),
    ("thc", {}, 8, "encode", {"bitpack.pack.8"}),
    ("thc", {}, 9, "encode", {"bitpack.pack.12"}),
    ("thc", {"block": 256}, 9, "finish", {"thc.dequantize.1024"}),
    ("qsgd", {}, 4, "encode", {"levels.encode.4.l2"}),
    ("qsgd", {}, 4, "decode", {"levels.decode.8"}),
    ("qsgd", {"bits": 5, "norm": "max"}, 4, "accumulate_encode", {"levels.add_encode.4"}),
    ("qsgd", {"bits": [2, 8]}, 4, "encode", {"bitpack.pack.3", "bitpack.pack.8"}),
    ("tfp", {}, 4, "encode", {"tfp.encode.4.scaled"}),
    ("tfp", {"bits": 16}, 4, "encode", {"tfp.encode.12.plain"}),
    ("terngrad", {}, 4, "seal", {"levels.add_encode.2", "levels.decode.2"}),
    ("onebit", {}, 4, "accumulate", {"signs.add.1"}),
    ("linear", {}, 4, "seal", {"linear.add.4", "linear.quantize.4", "linear.dequantize.4"}),
    ("linear", {"group": 2048}, 4, "decode", {"linear.dequantize.4.2048"}),
    ("linear", {"bits": 8, "hadamard": "fused"}, 4, "encode", {"linear.quantize_hadamard.8"}),
    ("all_to_all", {}, 4, "encode.local.hadamard", {"linear.quantize_hadamard.8"}),
    ("all_to_all", {}, 4, "collect.local", {"linear.reduce.8"}),
    ("all_to_all", {}, 4, "encode.node", {"linear.quantize.4"}),
    ("all_to_all", {}, 4, "collect.node.hadamard", {"linear.reduce_hadamard.4"}),
    ("all_to_all", {"hadamard": "apart"}, 4, "finish", {"hadamard.transform.1024"}),
]


def _told(value: object) -> str:
    """A test id that is equal in every process, although the order of a set is not."""
    return "+".join(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize(("name", "options", "workers", "label", "expected"), PARTS, ids=_told)
def test_operations_of_a_part(
    name: str, options: dict[str, Any], workers: int, label: str, expected: set[str]
) -> None:
    assert set(costs_of(make_codec(name, **options), workers)[label].operations) == expected


@every_codec
def test_operations_are_in_the_benchmark(name: str, options: dict[str, Any]) -> None:
    known = {operation.name for operation in all_operations() if "float32" in operation.dtypes}
    parts = costs_of(make_codec(name, **options), 9)
    assert {operation for cost in parts.values() for operation in cost.operations} <= known


@pytest.mark.parametrize("topology", TOPOLOGIES)
@every_codec
def test_all_that_a_codec_does_has_a_time(
    name: str, options: dict[str, Any], topology: str, tmp_path: Path
) -> None:
    """The clock covers every part of a step on every rank; without links nothing else takes time."""
    size, layout = 4, Layout.flat(4096)
    rows = [row(operation.name, 1.0) for operation in all_operations()]
    times = read_bench_times(written(tmp_path, *rows), make_codec(name, **options), size)
    world = VirtualWorld(
        size,
        Fabric(lambda n: make_schedule(topology, n)),
        torch.device("cpu"),
        clock=SimulatedClock(codec_times=times),
    )
    codecs = [make_codec(name, **options) for _ in range(size)]
    generator = torch.Generator().manual_seed(0)
    runs = {}
    for rank in world.ranks:
        x = torch.randn(layout.numel, generator=generator)
        this_round = Round(0, layout, rank, size, seed=0)
        runs[rank] = [synchronization(codecs[rank], x, this_round, check_hashes=True)]
    run_collectives(world, runs, coordinates=layout.numel)
    labels = set()
    for rank, measured in world.measured.items():
        works = [one for one in measured.tasks[0].operations if isinstance(one, Work)]
        labels |= {part.label for one in works for part in one.parts}
        assert world.timed[rank].end >= sum(times.seconds(one, layout.numel) for one in works) > 0
    encodes = set() if name == "fp32" else {"encode"}  # a float32 bucket is sent as it lies
    assert {label.partition(".")[0] for label in labels} >= {"plan", "finish"} | encodes


@every_codec
def test_the_recorded_table_has_every_codec(name: str, options: dict[str, Any]) -> None:
    times = read_bench_times(RECORDED, make_codec(name, **options), 4)
    parts = costs_of(make_codec(name, **options), 4)
    encodings = [label for label in parts if label.startswith("encode")]
    assert encodings and all(times.seconds(work((label, 1.0)), 1 << 20) > 0 for label in encodings)


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    *(
        (
            {"name": name},
            [f"codec={name} has no benchmarked operations", "fp32, bf16, dynamiq,", "codec_times=measured"],
        )
        for name in NOT_BENCHMARKED
    ),
    ({"name": "mxfp8", "exclude": ["*bias"]}, ["codec.exclude", "leave it out"]),
    ({"name": "mxfp8", "ef": True}, ["codec.ef=true", "leave it out"]),
    ({"name": "mxfp8", "ef": True, "exclude": ["*bias"]}, ["codec.exclude"]),
    ({"name": "mxfp4"}, ["no float32 row of mxfp.quantize.4", "codec=mxfp4",
                         "task=bench bench.operations=[mxfp.quantize.4,mxfp.copy.4,mxfp.add.4,"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=str)
def test_what_is_not_in_the_table_is_refused(
    options: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    refuse(written(tmp_path, *mxfp_rows()), options, said)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, *mxfp_rows(dtype="bfloat16"))
    refuse(
        path, {"name": "bf16"}, ["no float32 row", "codec=bf16", "task=bench bench.operations=[mxfp.copy.8]"]
    )
    refuse(path, {"name": "mxfp8"}, ["mxfp.maxima", "mxfp.dequantize.8"])
    path.write_text('{"device": "cpu", "rows": [{"dtype": "float32"}]}')
    refuse(path, {"name": "bf16"}, ["not a file that task=bench writes", "numel"])
    for name, value, allowed in (
        ("numel", -5, "a whole number of at least 1"),
        ("numel", 0, "a whole number of at least 1"),
        ("numel", 2.5, "a whole number of at least 1"),
        ("copy_bytes_per_s", 0, "a number of at least 1"),
        ("copy_bytes_per_s", float("nan"), "a number of at least 1"),
        ("copy_bytes_per_s", "x", "a number of at least 1"),
        ("copy_bytes_per_s", 10**400, "a number of at least 1"),
        ("times", {"shortest_s": -1}, "a number of at least 0"),
    ):
        path = written(tmp_path, *mxfp_rows(**{name: value}))
        refuse(path, {"name": "mxfp8"}, [f"row 1 has {name}", allowed, "give one that task=bench wrote"])
    for rows in ('[{"dtype": "float32", "times": 5}]', "5", "[5]", '[{"dtype": "float32", "numel": 1}]'):
        path.write_text(f'{{"device": "cpu", "rows": {rows}}}')
        refuse(
            path, {"name": "mxfp8"}, ["not a file that task=bench writes", "give one that task=bench wrote"]
        )
    path.write_text("rows")
    refuse(path, {"name": "bf16"}, ["not a file that task=bench writes"])
    refuse(tmp_path / "none.json", {"name": "bf16"}, ["not a file that task=bench writes"])


def refuse(path: Path, options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        read_bench_times(path, make_codec(**options), 4)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"network.codec_times={path}")
    assert all(text in message for text in said), message


def test_most_codecs_are_benchmarked() -> None:
    assert {"backend", "powersgd"} <= {*NOT_BENCHMARKED}
    assert 2 * len(NOT_BENCHMARKED) < len(OWN)


def test_a_run_names_the_table_and_the_codecs_settings(tmp_path: Path) -> None:
    path = written(tmp_path, row("omnireduce.energies.256", 1.0))
    network = SimulatedConfig(codec_times=str(path))
    codec = {"name": "omnireduce", "bits": 4.0, "ef": False, "exclude": []}
    clock = make_clock(network, 4, in_flight=2, overlap=True, seed=0, codec=codec)
    assert ns_of(clock.codec_times, "encode") == pytest.approx(4 / 16 * 6)
