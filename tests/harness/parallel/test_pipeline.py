"""Pipeline parallelism: stages compute what the whole model does, in every world, and lose nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
from pipeline_engine_jobs import both_train, untied
from pool import Workers
from recorded import outcome
from training_jobs import opened, tiny_run, train_all_virtually, train_rank
from transformers import AutoModelForCausalLM

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.models.build import build_model
from gradwire.harness.models.stages import STAGE_PARTS, StageParts, make_stage, tied_parameter
from gradwire.harness.parallel.pipeline.schedule import one_forward_one_backward
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import steps_of
from gradwire.harness.report.pipeline_plot import ShownStage, pipeline_of
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.tasks import timeline

PIPELINE = ("parallel=pipeline", "model.num_layers=4")
OFTEN = ("train.log_every=1", "measure.vnmse_every=1")


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(
    "model", ["gpt2", "gpt2 model.tie_embeddings=false", "llama1b", "gemma1b", "bert_large"]
)
def test_stages_in_a_row_are_the_model(model: str, stages: int) -> None:
    name, *given = model.split()
    config = validate(compose(["size=tiny", f"model={name}", "model.num_layers=4", *given])).model
    whole = build_model(config, 64, seed=0).eval()
    tokens = torch.randint(3, 64, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(12) < torch.tensor([[12], [5], [7]])).long()
    batch = {"input_ids": tokens, "labels": tokens, "attention_mask": mask}
    expected = whole(**batch)
    parts = [make_stage(whole, config.family, number, stages) for number in range(stages)]
    found = None
    for part in parts:
        found = part(found, **batch)
    assert found is not None
    assert torch.equal(found.loss, expected.loss)
    assert torch.equal(found.logits, expected.logits)
    names = [name for part in parts for name in part.named()]
    tied = tied_parameter(whole, config.family)
    assert (tied is None) == (not config.tie_embeddings)
    copies = [] if tied is None or stages == 1 else [tied.output]
    assert sorted(names) == sorted([*dict(whole.named_parameters()), *copies])
    assert build_model(config, 64, seed=0).state_dict().keys() == whole.state_dict().keys()


RUN = ("parallel=pipeline", "cluster.workers=4", "codec=dynamiq", "measure.trace=true", "model.num_layers=2")
SIMULATED = ("cluster=virtual", "network=simulated", "network.rate_mbit=100")


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, two replicas, with dropout."""
    directory = tmp_path_factory.mktemp("pipeline") / "virtual"
    train_all_virtually(tiny_run(*RUN, *OFTEN, *SIMULATED), str(directory))
    return directory


def test_real_equals_virtual_and_resumed_equals_undisturbed(
    virtual: Path, tmp_path: Path, workers: Workers
) -> None:
    config, run, directory = tiny_run(*RUN, *OFTEN), workers(4), tmp_path / "real"
    assert run(train_rank, config, str(directory), None, 2) == [False] * 4
    assert run(train_rank, config, str(directory), opened(config, directory)) == [True] * 4
    assert load_run(directory).done.resumed_after == [2]
    assert outcome(directory) == outcome(virtual)
    assert [row["vnmse"] for row in load_run(directory).steps] == [
        row["vnmse"] for row in load_run(virtual).steps
    ]


def test_bytes_are_what_shapes_and_messages_say(virtual: Path) -> None:
    """Each micro-batch crosses from stage to stage once in each direction; wire bits are those of gradients
    alone."""
    record = load_run(virtual)
    train, length = record.config["train"], record.config["dataset"]["sequence_length"]
    assert train["accumulation"] == 8
    numel = train["micro_batch"] * length * record.config["model"]["hidden_size"]
    sent = record.done.bytes_by_phase
    assert sent["activations"] == 4 * numel * 2 * train["accumulation"] * 2 * train["steps"]
    assert record.done.wire_bits_per_coordinate == pytest.approx(5.0, abs=0.15)


def test_the_folder_in_the_end_is_a_whole_model(virtual: Path) -> None:
    record = load_run(virtual)
    model = AutoModelForCausalLM.from_pretrained(virtual / "checkpoint")
    assert len(model.transformer.h) == 2
    assert model.lm_head.weight is model.transformer.wte.weight
    assert sum(parameter.numel() for parameter in model.parameters()) < record.done.num_coordinates
    assert not torch.equal(model.transformer.h[1].ln_1.weight, torch.ones(model.config.n_embd))


def test_its_trace_is_drawn(virtual: Path) -> None:
    config = validate_any(compose(["task=timeline", f"run={virtual}", "timeline.step=3"]))
    assert timeline.run(config) == 0
    events = json.loads((virtual / "timeline" / "step3.json").read_text())["traceEvents"]
    assert {"forward 7", "backward 0", "norm", "update"} <= {event["name"] for event in events}
    assert (virtual / "plots" / "pipeline-print.png").read_bytes().startswith(b"\x89PNG")


def test_its_plot_has_the_passes_in_order_and_when_stages_synchronize(virtual: Path) -> None:
    record = load_run(virtual)
    ((number, trace),) = steps_of(record, [3])
    shown = [ShownStage.of(trace[rank]) for rank in (0, 2)]
    for stage, own in enumerate(shown):
        passes = [one for one in own.computed if one.number is not None]
        assert [(one.kind, one.number) for one in passes] == one_forward_one_backward(stage, 2, 8)
        assert all(one.end <= following.start + 1e-9 for one, following in pairwise(own.computed))
        assert all(one.start >= passes[-1].start for one in own.synchronized)
    first, last = (min(one.start for one in own.synchronized) for own in shown)
    assert first > last
    assert pipeline_of(record, "", [number], [trace]) is not None
    of_ddp = replace(record, config=record.config | {"parallel": {"name": "ddp"}})
    assert pipeline_of(of_ddp, "", [number], [trace]) is None


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 6), (2, 3)])
def test_a_given_computation_makes_slots(
    schedule: str, stages: int, micro_batches: int, tmp_path: Path
) -> None:
    """With links that cost nothing a step is m + p − 1 slots of a forward and a backward pass."""
    config = tiny_run(
        *("parallel=pipeline", f"parallel.stages={stages}", f"cluster.workers={stages}", "codec=fp32"),
        *(f"train.accumulation={micro_batches}", f"parallel.schedule={schedule}", "model.num_layers=4"),
        *("cluster=virtual", "network=simulated", "network.rate_mbit=1e9", "network.latency_s=0"),
        *(f"network.compute_s={micro_batches}", "network.codec_times=none", "train.steps=2"),
    )
    train_all_virtually(config, str(tmp_path))
    slots = micro_batches + stages - 1
    for row in load_run(tmp_path).steps:
        assert row["step_time_s"] == pytest.approx(slots, abs=1e-6)
        assert row["compute_s"] == pytest.approx(micro_batches, abs=1e-9)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["parallel.stages=3"], "parallel.stages=3 does not divide cluster.workers=4; use"),
        (["cluster.workers=3", "parallel.stages=3"], "parallel.stages=3 does not divide the 4 layers"),
        (["train.accumulation=1"], "train.accumulation=1 micro-batches cannot fill .*=1f1b; use"),
        (["codec=backend"], "codec=backend sums over all ranks"),
        (["parallel.schedule=zigzag"], "parallel.schedule=zigzag.* 1f1b, gpipe"),
        (["measure.save_gradients_at=[1]"], "measure.save_gradients_at.* parallel=pipeline"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        validate(compose(["size=tiny", *PIPELINE, "cluster.workers=4", *given]))
    assert "\n" not in str(raised.value)


def test_a_family_that_cannot_be_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(cast(dict[str, StageParts], STAGE_PARTS), "llama")
    with pytest.raises(
        ConfigError, match="model=llama1b cannot be cut into stages: .* bert, gemma, gpt2; use"
    ):
        validate(compose(["size=tiny", *PIPELINE, "cluster.workers=4", "model=llama1b"]))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_torch_s_own_engine_gets_the_same(schedule: str, workers: Workers) -> None:
    for stage, (ours, theirs) in enumerate(workers(2)(both_train, untied(schedule), 6)):
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
        if stage == 1:
            assert min(ours.losses) > 0
            assert ours.losses[-1] < ours.losses[0] - 0.1
        assert ours.gradients.keys() == theirs.gradients.keys()
        for name, gradient in ours.gradients.items():
            torch.testing.assert_close(gradient, theirs.gradients[name], rtol=1e-4, atol=1e-6)
