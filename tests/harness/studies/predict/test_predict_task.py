"""`task=predict`: the clock's own figure for runs that fit, closed forms, calibration, wrong input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_folders import write_config
from presets import preset
from tiny import TINY_MODEL
from training_jobs import tiny_run, train_all_virtually

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.record.runs import load_run
from gradwire.harness.report.frame import load_results
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.predict import step as predicted_step
from gradwire.harness.studies.predict import task as predict_task
from gradwire.harness.studies.predict.group import shared_network
from gradwire.harness.studies.predict.model import divided, part_of
from gradwire.harness.studies.predict.step import looks_at_values
from gradwire.harness.studies.predict.study import STUDY as PREDICT
from gradwire.harness.studies.predict.study import PredictConfig, PredictSummary, PredictTask

TINY = tuple(key for key in TINY_MODEL if key.partition(".")[0] in ("size=tiny", "model", "parallel"))
GIVEN = ("network=simulated", "network.rate_mbit=5", "network.compute_s=0.05", "network.codec_times=none")
NODES = ("network.fabric=two_level", "network.ranks_per_node=2", "network.intra_rate_mbit=300")
SHARDED = "parallel=sharded"


def config_of(*overrides: str) -> PredictTask:
    found = validate_any(compose(["task=predict", *TINY, *overrides]))
    assert isinstance(found, PredictTask)
    return found


def predicted(directory: Path, *overrides: str) -> PredictSummary:
    assert PREDICT.run(config_of(*overrides), directory) == 0
    return PredictSummary.read(directory / PredictSummary.file)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        config_of(*overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        ("parallel=ddp", "codec=fp32"),
        ("parallel=ddp", "codec=mxfp8", "topology=butterfly", "overlap.segments=2", "overlap.enabled=false"),
        ("parallel=ddp", "codec=all_to_all", *NODES, "model=bert_large"),
        (SHARDED, "codec=fp32", "model=llama1b"),
        (SHARDED, "codec=all_to_all", "parallel.weights=qwd", "parallel.model_dtype=bfloat16", *NODES),
        (SHARDED, "codec=linear", "parallel.weights=qw", "overlap.enabled=false"),
    ],
)
def test_it_is_the_clocks_own_figure(settings: tuple[str, ...], tmp_path: Path) -> None:
    common = ("cluster.workers=4", *settings, *GIVEN)
    run = ("cluster=virtual", "train.steps=1", "measure.vnmse_every=0", "train.save_checkpoint=false")
    train_all_virtually(tiny_run(*common, *run), str(tmp_path / "run"))
    done = load_run(tmp_path / "run")
    found = predicted(tmp_path / "predicted", *common)
    assert found.coordinates == found.parameters == done.done.num_coordinates
    assert found.step_s == pytest.approx(done.steps[0]["step_time_s"], rel=1e-3)
    assert found.step_s > 1.3 * 0.05
    sent = {phase: count for phase, count in done.done.bytes_by_phase.items() if count}
    assert found.bytes_by_phase == sent
    parts = (found.compute_s, found.gradients_s, found.weights_s, found.other_s)
    assert sum(parts) == pytest.approx(found.step_s) and found.compute_s == pytest.approx(0.05)


@pytest.mark.parametrize(
    "settings",
    [
        ("codec=fp32", "parallel.stages=2", *GIVEN),
        (
            "codec=optimus_cc",
            "codec.rank=2",
            "codec.backward_rank=2",
            "parallel.stages=2",
            "parallel.schedule=gpipe",
            *GIVEN,
            *NODES,
        ),
    ],
)
def test_a_pipeline_is_the_clocks_own_figure(settings: tuple[str, ...], tmp_path: Path) -> None:
    common = ("cluster.workers=4", "parallel=pipeline", "model.num_layers=4", *settings)
    run = ("cluster=virtual", "train.steps=1", "measure.vnmse_every=0", "train.save_checkpoint=false")
    train_all_virtually(
        tiny_run(*common, *run, "train.micro_batch=2", "train.accumulation=8"), str(tmp_path / "run")
    )
    done = load_run(tmp_path / "run")
    batches = ("predict.sequences=16", "predict.micro_batches=8", "model.recipe.sequence_length=32")
    found = predicted(tmp_path / "predicted", *common, *batches)
    assert found.step_s == pytest.approx(done.steps[0]["step_time_s"], rel=1e-3)
    sent = {phase: count for phase, count in done.done.bytes_by_phase.items() if count}
    assert found.bytes_by_phase == sent
    bubble = (found.pipeline_parallel - 1) / 8 * 0.05
    assert found.stages_s > bubble and found.compute_s == pytest.approx(0.05)
    waits = (found.gradients_s, found.weights_s, found.stages_s, found.other_s)
    assert sum(waits) == pytest.approx(found.step_s - 0.05)


def test_workers_of_a_pipeline_send_their_share(tmp_path: Path) -> None:
    """They have their share of activations and matrices, divided as Megatron-LM divides them."""
    nodes = (*NODES, "network.ranks_per_node=4", "network.nodes=2", "cluster.workers=8")
    pipeline = ("parallel=pipeline", "parallel.stages=2", "model.num_layers=2", "predict.micro_batches=4")
    given = ("predict.tensor_parallel=2", "predict.sequences=8", "predict.baseline_step_s=0.9")
    found = predicted(tmp_path, *GIVEN[:2], *nodes, "codec=fp32", *pipeline, *given)
    assert (found.replicas, found.pipeline_parallel, found.calibrated) == (2, 2, True)
    assert found.step_s == pytest.approx(0.9)
    rows, length, hidden, both_ways = 2, 64, 32, 2
    of_a_micro_batch = both_ways * rows * length * hidden // 2 * 4
    assert found.bytes_by_phase["activations"] == found.replicas * 4 * of_a_micro_batch
    assert divided((32, 96), 4, hidden) == (32, 24) and divided((96, 32), 4, hidden) == (24, 32)
    assert divided((32, 32), 4, hidden) == (8, 32) and divided((33,), 4, hidden) == (33,)
    assert divided((50257, 32), 4, hidden) == (12565, 32)


def test_groups_share_what_they_use() -> None:
    """SDP4Bit's clusters: a port for each node of four, a port for each of eight."""
    a100 = SimulatedConfig(fabric="two_level", nodes=16, ranks_per_node=4, rate_mbit=100.0)
    h800 = SimulatedConfig(fabric="two_level", nodes=16, ranks_per_node=8, nics=8, rate_mbit=400.0)
    mixed = replace(h800, nics=2)

    def share(network: SimulatedConfig, tensor: int) -> tuple[int, int, float]:
        found = shared_network(network, tensor, 16)
        return found.ranks_per_node, found.nics, found.rate_mbit

    assert [share(a100, tensor) for tensor in (1, 2, 4)] == [(4, 1, 100), (2, 1, 50), (1, 1, 25)]
    assert [share(h800, tensor) for tensor in (1, 4, 8)] == [(8, 8, 400), (2, 2, 400), (1, 1, 400)]
    assert [share(mixed, tensor) for tensor in (2, 4, 8)] == [(4, 2, 200), (2, 2, 100), (1, 1, 100)]


def test_a_workers_part_and_its_arithmetic() -> None:
    """Megatron-LM's formula for GPT models, with and without computing activations again."""
    model = replace(preset("gpt_18b"), num_layers=4)
    layers, hidden, length, vocabulary = 4, model.hidden_size, 2048, model.vocab_size
    whole, again = part_of(model, PredictConfig()), part_of(model, PredictConfig(recompute=True))
    of_layers = 24 * length * layers * hidden**2 * (1 + length / (6 * hidden))
    last = 6 * length * hidden * vocabulary
    assert whole.flops == pytest.approx(3 * of_layers + last, rel=1e-9)
    assert again.flops == pytest.approx(4 * of_layers + last, rel=1e-9)
    matrices = layers * 12 * hidden**2 + (vocabulary + length) * hidden
    assert whole.coordinates == whole.parameters == pytest.approx(matrices, rel=1e-3)
    divided = part_of(model, PredictConfig(tensor_parallel=4, pipeline_parallel=2, sequences=3))
    assert divided.parameters == whole.parameters
    assert divided.coordinates == pytest.approx(
        (layers / 2 * 12 * hidden**2 + (vocabulary + length) * hidden) / 4, rel=1e-3
    )
    assert divided.flops == pytest.approx(3 * whole.flops / 8, rel=1e-9)


def test_an_output_matrix_of_its_own_is_the_last_stages() -> None:
    """Tied, it is the first stage's embedding."""
    own = replace(preset("llama1b"), num_layers=2, tie_embeddings=False)
    matrix = own.vocab_size * own.hidden_size
    tied = part_of(replace(own, tie_embeddings=True), PredictConfig(pipeline_parallel=2))
    parts = [part_of(own, PredictConfig(pipeline_parallel=stages)) for stages in (1, 2)]
    assert parts[0].coordinates == parts[0].parameters == tied.parameters + matrix
    assert parts[1].shapes == tied.shapes and "lm_head.weight" not in parts[1].shapes


def test_other_errors_are_not_taken_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setup: Any, model: Any, world: Any) -> None:
        raise RuntimeError("something else")

    config = config_of("cluster.workers=4", "codec=fp32", *GIVEN)
    monkeypatch.setattr(predicted_step, "traced_programs", broken)
    with pytest.raises(RuntimeError, match="something else"):
        looks_at_values(config, config.parallel, config.codec)


def test_the_computation_follows_from_the_uncompressed_system(tmp_path: Path) -> None:
    """With half of the workers the computation is the same; with overlap, too, it is found."""
    common = ("network=simulated", "network.rate_mbit=20", "codec=fp32", SHARDED, "cluster.workers=4")
    given = predicted(tmp_path / "given", *common, "network.compute_s=0.05")
    tflops = f"predict.baseline_tflops={given.tflops!r}"
    found = predicted(tmp_path / "found", *common, tflops, "predict.printed_tflops=1")
    assert found.compute_s == pytest.approx(0.05, rel=1e-4)
    assert (found.calibrated, given.calibrated) == (True, False)
    assert found.over_uncompressed == 1 and found.error == pytest.approx(given.tflops - 1)
    others = ("codec=bf16", "cluster.workers=2", "predict.baseline_workers=4")
    other = predicted(tmp_path / "other", tflops, *common[:2], SHARDED, *others)
    assert other.compute_s == pytest.approx(0.05, rel=1e-4) and other.over_uncompressed > 1.05
    while_computing = f"predict.compute_tflops={given.flops / 0.05e12!r}"
    assert predicted(tmp_path / "rate", *common, while_computing).step_s == pytest.approx(given.step_s)
    with pytest.raises(ValueError, match=r"baseline_tflops=1000 is a step of .* alone takes"):
        predicted(tmp_path / "wrong", *common, "predict.baseline_tflops=1000")


def test_tables_say_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    divided = ("cluster.workers=8", *NODES, "network.ranks_per_node=4", *GIVEN, "codec=bf16")
    split = ("model.num_layers=2", "predict.tensor_parallel=2", "predict.pipeline_parallel=2")
    found = predicted(tmp_path / "a", *divided, *split, "parallel=ddp")
    assert found.replicas == 2 and len(found.left_out) == 4
    printed = capsys.readouterr().out
    for words in ("modelled", "computation given", "tensors over 2, 2 stages", *found.left_out):
        assert words in " ".join(printed.split())
    rows = load_results(tmp_path)
    times = rows[rows.metric == "step_time_s"]
    assert [*times.kind] == ["modelled"] and times.value.item() == found.step_s
    content: dict[str, Any] = json.loads((tmp_path / "a" / PredictSummary.file).read_text())
    assert content["step_s"] == found.step_s


STAGES = ("cluster.workers=4", "parallel=pipeline", "parallel.stages=2")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("cluster.workers=4", "network.compute_s=null"), "no setting gives a worker's computation time"),
        (
            ("cluster.workers=4", "predict.baseline_tflops=1"),
            "predict.baseline_tflops=1 contradict each other",
        ),
        (("cluster.workers=4", "predict.baseline_workers=2"), "baseline_workers=2 has no effect"),
        (("cluster.workers=4", "predict.tensor_parallel=3"), "does not divide 4 workers"),
        (("cluster.workers=6", *NODES, "predict.tensor_parallel=3"), "does not divide the workers of a node"),
        (("cluster.workers=12", *NODES, "predict.pipeline_parallel=4"), "does not divide 6 nodes"),
        (("cluster.workers=4", "predict.pipeline_parallel=2"), "does not divide model.num_layers=1"),
        (("cluster.workers=4", "codec=omnireduce"), "looks at values"),
        (("cluster.workers=4", SHARDED, "codec=topk"), "codec=topk has no scatter"),
        (("codec=bf16",), "cluster.workers is not given"),
        ((*STAGES, "predict.pipeline_parallel=2"), "use parallel.stages=2 instead"),
        ((*STAGES, "predict.sequences=9"), "cannot be divided evenly into 8 micro-batches"),
        ((*STAGES, "predict.micro_batches=1"), "predict.micro_batches=1 cannot fill parallel.stages=2"),
        ((*STAGES, "predict.sequences=8"), "parallel.stages=2 does not divide model.num_layers=1"),
        (("cluster.workers=4", "predict.micro_batches=2"), "has no effect with parallel="),
        (("cluster.workers=512", "parallel.bucket_cap_mb=0.02"), "up to parallel.bucket_cap_mb=65536"),
        (("cluster.workers=1024",), "use a smaller cluster.workers, for groups of at most 512"),
        (("cluster.workers=4", "codec=dynamiq", "codec.ef=true"), "diverges with codec=dynamiq"),
        (("cluster.workers=4", "network.codec_times=measured"), "measured: task=predict runs no codec"),
    ],
)
def test_what_cannot_be_predicted_is_refused(given: tuple[str, ...], words: str) -> None:
    codec = [] if any(key.startswith("codec=") for key in given) else ["codec=fp32"]
    assert words in refusal(*codec, *GIVEN, *given)


@pytest.mark.parametrize(("parallel", "hops"), [("ddp", 2), ("sharded", 1)])
@pytest.mark.parametrize("segments", [1, 4])
def test_a_refusal_says_how_many_messages_there_would_be(parallel: str, hops: int, segments: int) -> None:
    """One message of each pair of workers to scatter, and one to gather. The largest group named in the
    refusal is the largest one that is not refused."""

    def check(workers: int) -> None:
        config: Any = SimpleNamespace(
            model=SimpleNamespace(num_layers=1, hidden_size=8, intermediate_size=8, vocab_size=8),
            predict=SimpleNamespace(pipeline_parallel=1, tensor_parallel=1),
            parallel=SimpleNamespace(name=parallel, bucket_cap_mb=25.0),
            overlap=SimpleNamespace(segments=segments),
            cluster=SimpleNamespace(size=workers),
            codec={"name": "fp32"},
        )
        predict_task._check_messages(config, SimpleNamespace(size=workers))  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=f"which send {2048**2 * hops * segments} messages") as raised:
        check(2048)
    most = int(str(raised.value).rpartition(" ")[2])
    check(most)
    with pytest.raises(ValueError, match=f"for groups of at most {most}$"):
        check(most + 1)


def test_another_network_is_refused() -> None:
    assert "network=none is not a simulated clock" in refusal(
        "network=none", "cluster.workers=2", "codec=fp32"
    )


def test_models_for_images_are_refused() -> None:
    said = refusal("codec=fp32", "model=resnet50", "cluster.workers=2", "network.compute_s=0.1")
    assert "model=resnet50: task=predict counts operations of tokens" in said


def test_a_folder_is_predicted_by_its_own_shape(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 3, "hidden_size": 48, "max_position_embeddings": 64}
    known = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **shape}
    gpt2 = write_config(tmp_path / "gpt2", **known, tie_word_embeddings=True)
    folder = ("model=folder", "model.weights=random", "cluster.workers=2", "codec=bf16", *GIVEN)
    read = validate_any(compose(["task=predict", *folder, f"model.path={gpt2}"]))
    assert isinstance(read, PredictTask)
    assert (read.model.family, read.model.num_layers, read.model.hidden_size) == ("gpt2", 3, 48)
    neox = write_config(tmp_path / "neox")
    with pytest.raises(ConfigError, match=r"model_type=gpt_neox, whose layers task=predict does not know"):
        validate_any(compose(["task=predict", *folder, f"model.path={neox}"]))
