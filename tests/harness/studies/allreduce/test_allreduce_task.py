"""`task=allreduce`: the clock's figures, the table of a sweep, wrong input; real workers once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import clock_rounds_jobs as jobs
import pytest
from pool import Workers

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.network.settings import PacedConfig, ShapedConfig
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.frame import load_results
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.allreduce import rounds
from gradwire.harness.studies.allreduce.rounds import clock_for, model, over_ranks
from gradwire.harness.studies.allreduce.study import STUDY as ALLREDUCE
from gradwire.harness.studies.allreduce.study import AllReduceSummary, AllReduceTask
from gradwire.harness.timing.measure.metric import Spread

SMALL = ("allreduce.coordinates=20000", "allreduce.repeats=2", "kernels=default", "cluster.workers=3")


def run(directory: Path, *overrides: str) -> AllReduceSummary:
    config = validate_any(compose(["task=allreduce", *SMALL, *overrides]))
    assert ALLREDUCE.run(config, directory) == 0
    return AllReduceSummary.read(directory / AllReduceSummary.file)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        validate_any(compose(["task=allreduce", *SMALL, *overrides]))
    return str(raised.value)


def test_the_clock_takes_what_the_bytes_take(tmp_path: Path) -> None:
    """Free codecs: 2(n − 1) hops of a third of 20,000 coordinates in 16 bits."""
    simulated = ["network=simulated", "network.rate_mbit=8", "network.codec_times=none"]
    found = run(tmp_path / "bf16", "codec=bf16", *simulated)
    assert found.wire_bits_by_level is None, "all are on one node"
    assert found.measured is None and found.ratio is None and found.rounds_s == []
    assert found.modelled.median == pytest.approx(4 * 20000 / 3 * 2 / 1e6, rel=1e-3)
    assert found.wire_bits_per_coordinate == pytest.approx(16)
    assert found.bytes_sent == 4 * 20000 * 2
    assert found.bus_bandwidth == pytest.approx(2 * 1e6, rel=1e-3), "BF16 sends half of the float32 bytes"
    slower = run(tmp_path / "late", "codec=bf16", *simulated, "network.latency_s=0.01")
    assert slower.modelled.median == pytest.approx(found.modelled.median + 4 * 0.01)


LEVELS = {"ring": {"local": 8, "node": 8}, "two_level": {"local": 16 * 4 / 6, "node": 16 * 2 / 6}}
"""Wire bits of BF16 on two nodes of two. On a ring every other rank sends to the other node. By levels each
of the four ranks sends half of its gradient twice inside its node and a quarter twice to the other one: six
gradients in all."""


@pytest.mark.parametrize("topology", LEVELS)
def test_wire_bits_by_level_are_those_of_the_formula(topology: str, tmp_path: Path) -> None:
    nodes = ("network=simulated", "cluster.workers=4", "cluster.ranks_per_node=2", f"topology={topology}")
    found = run(tmp_path / "run", "codec=bf16", *nodes)
    assert found.wire_bits_by_level == pytest.approx(LEVELS[topology])
    assert found.wire_bits_per_coordinate == 16
    lines = load_results(tmp_path / "run").set_index("metric").value
    for level, bits in LEVELS[topology].items():
        assert lines[f"wire_bits_by_level.{level}"] == pytest.approx(bits)


def test_real_workers_and_the_clock_send_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over paced links and in segments, bytes are equal, and the time is at least what the link needs."""
    paced = ["network=paced", "network.rate_mbit=20", "overlap.segments=2", "cluster.workers=2"]
    paced.append("cluster.ranks_per_node=1")
    found = run(tmp_path / "run", "codec=dynamiq", *paced)
    assert found.measured is not None and found.ratio is not None
    least = found.bytes_sent / 2 * 8 / 20e6
    assert found.modelled.low >= least
    assert found.measured.low >= 0.99 * least
    assert len(found.rounds_s) == 2
    assert found.pieces == 2
    assert found.wire_bits_by_level == {"local": 0.0, "node": found.wire_bits_per_coordinate}
    shown = capsys.readouterr().out
    assert "dynamiq-5, 2 segments" in shown and "emulated /" in shown
    again = (tmp_path / "run" / AllReduceSummary.file).read_text()
    run(tmp_path / "run", "codec=dynamiq", *paced)
    assert (tmp_path / "run" / AllReduceSummary.file).read_text() == again, "a finished one is not repeated"


def summary(codec: str, seconds: float, bits: float, **changes: Any) -> AllReduceSummary:
    known = AllReduceSummary(
        codec=codec,
        topology="ring",
        workers=4,
        coordinates=1000,
        pieces=1,
        network="shaped at 100 Mbit/s",
        network_settings={"name": "shaped", "rate_mbit": 100.0, "background_jobs": 0},
        rate_mbit=100.0,
        goodput_mbit=95.0,
        background_jobs=0,
        repeats=3,
        measured=Spread(seconds, seconds, seconds),
        measured_codec_s=Spread(0.1, 0.1, 0.1),
        modelled=Spread(seconds / 2, seconds / 2, seconds / 2),
        modelled_codec_s=Spread(0.05, 0.05, 0.05),
        bytes_sent=10,
        wire_bits_per_coordinate=bits,
        kernel_backend="cpu",
        rounds_s=[seconds],
        provenance={},
    )
    return replace(known, **changes)


def table(tmp_path: Path, *found: AllReduceSummary) -> list[dict[str, Any]]:
    folders = []
    for number, one in enumerate(found):
        folders.append(tmp_path / f"run{number}")
        folders[-1].mkdir()
        (folders[-1] / AllReduceSummary.file).write_text(one.to_json())
        (folders[-1] / "config.yaml").write_text("task: {name: allreduce}\n")
        mark_done(folders[-1])
        assert AllReduceSummary.read(folders[-1] / AllReduceSummary.file) == one
    ALLREDUCE.compare(folders, tmp_path / "table")
    rows: list[dict[str, Any]] = json.loads((tmp_path / "table" / "table.json").read_text())["rows"]
    return rows


def test_codecs_are_compared_with_bf16_under_the_same_settings_only(tmp_path: Path) -> None:
    other = {"name": "shaped", "rate_mbit": 100.0, "background_jobs": 3}
    rows = table(
        tmp_path,
        summary("bf16", 2.0, 16),
        summary("dynamiq-5", 0.75, 5),
        summary("dynamiq-5", 3.0, 5, network_settings=other),
        summary("bf16", 8.0, 16, network_settings=other),
        summary("dynamiq-5", 1.0, 5, measured=None, rounds_s=[]),
        summary("dynamiq-5", 1.0, 5, kernel_backend="default"),
    )
    first, second = rows[1], rows[2]
    assert first["to_bf16"] == pytest.approx(0.375)
    assert first["over_bits"] == pytest.approx(0.375 / (5 / 16))
    assert first["saved_s"] == pytest.approx(1.25)
    assert second["saved_s"] == pytest.approx(5.0)
    assert [row["to_bf16"] for row in rows[4:]] == [None, None]
    assert first["measured_over_modelled"] == pytest.approx(2)
    assert first["bus_bandwidth"] == pytest.approx(4 * 1000 / 0.75 * 2 * 3 / 4)


def test_pieces_are_compared_with_bf16_in_as_many(tmp_path: Path) -> None:
    rows = table(
        tmp_path,
        summary("bf16", 2.0, 16),
        summary("bf16", 1.0, 16, pieces=4),
        summary("mxfp8", 0.5, 8.5, pieces=4),
        summary("mxfp8", 0.5, 8.5, pieces=2),
    )
    assert [row["to_bf16"] for row in rows] == [1, 1, 0.5, 0.25]


def test_what_cannot_run_is_refused_in_one_line() -> None:
    assert "allreduce.coordinates=0" in refusal("allreduce.coordinates=0")
    assert "codec=powersgd: it compresses matrices" in refusal("codec=powersgd")
    assert "codec=backend: the backend sends its own messages" in refusal("codec=backend")
    assert "cluster.workers=3" in refusal("network=dynamiq_testbed")
    assert "cluster.ranks_per_node=" in refusal("topology=two_level")


MATRICES = "allreduce.matrices=[[40,30],[30],[20,5,8]]"


def of_matrices(*overrides: str) -> Any:
    return validate_any(compose(["task=allreduce", *SMALL[1:], MATRICES, *overrides]))


def test_a_bucket_of_matrices(tmp_path: Path) -> None:
    """PowerSGD of rank 4 sends P and Q of each matrix, and vectors as they are, in float32."""
    config = of_matrices("codec=powersgd", "codec.rank=4", "network=simulated", "network.rate_mbit=8")
    assert config.allreduce.coordinates == 1200 + 30 + 800
    assert ALLREDUCE.run(config, tmp_path) == 0
    found = AllReduceSummary.read(tmp_path / AllReduceSummary.file)
    assert found.coordinates == 2030
    numbers = 4 * (40 + 30) + 30 + 4 * (20 + 5 * 8)
    assert found.bytes_sent == 2 * (3 - 1) * 4 * numbers, "a ring of three"
    assert run_id(of_matrices()) != run_id(validate_any(compose(["task=allreduce", *SMALL])))


def test_shapes_that_are_none_are_refused() -> None:
    assert "allreduce.matrices=[[768,3072],[768]]" in refusal("codec=powersgd")
    for shapes in ("[[0,3]]", "[[]]", "[[2.5]]", "[[true]]"):
        assert "which is not a shape" in refusal(
            f"allreduce.matrices={shapes}", "allreduce.coordinates=8388608"
        )
    assert "contradicts" in refusal("allreduce.matrices=[[2,3]]")


SHARDED = ("parallel=sharded", "cluster.workers=4", "cluster.ranks_per_node=2", "allreduce.coordinates=65536")

FREE = ("network=simulated", "network.rate_mbit=8", "network.codec_times=none")


def test_a_bucket_is_scattered_and_its_weights_are_gathered(tmp_path: Path) -> None:
    """Each part alone, on the clock without codec times, takes the time of its bytes."""
    found = run(tmp_path / "exact", *SHARDED, *FREE, "codec=fp32", "parallel.model_dtype=bfloat16")
    assert found.parts is not None and (found.weights, found.model_dtype) == ("exact", "bfloat16")
    scatter, gather = found.parts["gradients"], found.parts["weights"]
    assert (scatter.bytes_sent, gather.bytes_sent) == (3 * 4 * 65536, 3 * 2 * 65536)
    assert (scatter.wire_bits_per_coordinate, gather.wire_bits_per_coordinate) == (32, 16)
    assert found.wire_bits_per_coordinate == 24, "their mean"
    assert scatter.modelled.median == pytest.approx(scatter.bytes_sent / 4 / 1e6, rel=1e-3)
    assert found.modelled.median == pytest.approx(scatter.modelled.median + gather.modelled.median)
    assert found.bus_bandwidth == pytest.approx(1e6, rel=0.02), "nothing is compressed"


def test_sdp4bit_takes_what_its_bits_take(tmp_path: Path) -> None:
    """8.25 bits inside nodes, 4.25 between, 4.016 for weights; and the table of both strategies."""
    paths = [tmp_path / "exact", tmp_path / "sdp4bit"]
    exact = run(paths[0], *SHARDED, *FREE, "codec=fp32", "parallel.model_dtype=bfloat16")
    bits = [*SHARDED, *FREE, "codec=all_to_all", "parallel.weights=qwd", "parallel.model_dtype=bfloat16"]
    found = run(paths[1], *bits)
    assert found.parts is not None and found.weights == "qwd-4/2048"
    assert found.parts["gradients"].wire_bits_per_coordinate == pytest.approx((2 * 8.25 + 4.25) / 3)
    assert found.parts["weights"].wire_bits_per_coordinate == pytest.approx(4 + 32 / 2048)
    assert found.seconds / exact.seconds == pytest.approx(found.bytes_sent / exact.bytes_sent, rel=0.1)
    page = ALLREDUCE.compare(paths, tmp_path / "table")
    rows = {row["codec"]: row for row in json.loads((tmp_path / "table" / "table.json").read_text())["rows"]}
    assert rows["all_to_all"]["over_bytes"] == pytest.approx(1, rel=0.1)
    assert rows["all_to_all"]["scatter_s"] == found.parts["gradients"].modelled.median
    assert rows["fp32"]["to_exact"] == 1 and rows["fp32"]["to_bf16"] is None
    assert "qwd-4/2048" in page.text


def test_several_sizes_make_a_table(tmp_path: Path) -> None:
    paths = []
    for codec, size in (("bf16", 65536), ("bf16", 4096), ("fp32", 4096), ("mxfp8", 4096), ("mxfp8", 65536)):
        paths.append(tmp_path / f"{codec}-{size}")
        run(paths[-1], "cluster.workers=2", *FREE, f"codec={codec}", f"allreduce.coordinates={size}")
    page = ALLREDUCE.compare(paths, tmp_path / "table")
    over_sizes = page.tables[-1]
    assert over_sizes.title == "Over sizes: ring of 2; modelled, 8 Mbit/s" and over_sizes.names == 3
    assert [row[:3] for row in over_sizes.rows] == [
        *(["bf16", "4,096", "0.01638"], ["bf16", "65,536", "0.2621"]),
        *(["mxfp8", "4,096", "0.01638"], ["mxfp8", "65,536", "0.2621"]),
    ]
    assert [table.title.startswith("Over sizes") for table in page.tables].count(True) == 1
    assert not any("Over" in table.title for table in ALLREDUCE.compare(paths[:1], tmp_path / "one").tables)


@pytest.mark.parametrize(
    ("network", "measured", "expected"),
    [
        (ShapedConfig(rate_mbit=50.0), None, 50.0),
        (ShapedConfig(rate_mbit=50.0), 47.5, 47.5),
        (PacedConfig(rate_mbit=50.0), None, 50.0),
        (PacedConfig(rate_mbit=50.0), 47.5, 50.0),
    ],
)
def test_shaped_links_are_modelled_by_what_they_carry(
    network: ShapedConfig | PacedConfig,
    measured: float | None,
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links limited in user space keep to their rate."""
    asked: list[float] = []
    monkeypatch.setattr(rounds, "make_clock", lambda network, *_, **__: asked.append(network.rate_mbit))
    config = validate_any(compose(["task=allreduce", *SMALL]))
    assert isinstance(config, AllReduceTask)
    clock_for(replace(config, network=network), measured)
    assert asked == [expected]


def test_real_workers_scatter_and_gather_what_the_clock_does(workers: Workers) -> None:
    """In each part bytes are equal, inside nodes and between them."""
    asked = (*SHARDED, "codec=all_to_all", "parallel.weights=qw", "network=simulated")
    config = validate_any(compose(["task=allreduce", *SMALL, *asked]))
    on_clock = model(config, clock_for(config, None))
    for name, own in over_ranks(workers(4)(jobs.measured, config)[0]).items():
        assert own.bytes_sent == on_clock[name].bytes_sent > 0
        assert own.bytes_between_nodes == on_clock[name].bytes_between_nodes > 0
        assert len(own.seconds) == 2 and min(own.seconds) > min(own.codec_s) > 0


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["codec=topk"], "codec=topk has no scatter, which parallel=sharded needs"),
        (["codec=fp32", "topology=broadcast"], "topology=broadcast computes no partial sums"),
        (["parallel.main=algorithm4"], "parallel.main=algorithm4 has no effect with task=allreduce"),
        (["parallel.bucket_cap_mb=1"], "parallel.bucket_cap_mb=1"),
        (
            ["parallel.weight_group=128"],
            "weight_group=128 has no effect with parallel.weights=exact",
        ),
        (["codec=all_to_all", "topology=butterfly"], "does not use topology=butterfly"),
    ],
)
def test_what_cannot_be_scattered_and_gathered_is_refused(overrides: list[str], says: str) -> None:
    assert says in refusal("parallel=sharded", "cluster.workers=4", *overrides)


def test_what_ddp_has_no_use_for_here_is_refused_and_parallelisms_have_ids_of_their_own() -> None:
    assert "parallel.static_graph=true has no effect" in refusal("parallel.static_graph=true")
    config = validate_any(compose(["task=allreduce", *SMALL]))
    sharded = validate_any(compose(["task=allreduce", *SMALL, "codec=fp32", "parallel=sharded"]))
    weights = validate_any(
        compose(["task=allreduce", *SMALL, "codec=fp32", "parallel=sharded", "parallel.weights=qwd"])
    )
    assert len({run_id(sharded), run_id(weights), run_id(config)}) == 3
