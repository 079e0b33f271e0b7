"""Data parallelism by blocks: what DDP computes, in every world, interrupted or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from given_times import MarkedBy
from pool import Workers
from recorded import loads, outcome
from torch import Tensor, nn
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.harness.parallel.blocks.groups import make_blocks
from gradwire.harness.parallel.blocks.updates import BlockUpdaters
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.timing.trace.step import Await, Compute, forward_of

SIZE = 3
BLOCKS = ("parallel=blocks", "parallel.bucket_cap_mb=25", "parallel.num_blocks=3", "topology=broadcast")
WORKERS = f"cluster.workers={SIZE}"
AQGB = (*BLOCKS, "codec=aqgb", "codec.margin_s=0", WORKERS, "train.log_every=1", "measure.trace=true")
PLAIN = ("codec.base=plain", "codec.rounding=stochastic")
TICK = 1 / 1024
NETWORK = ("cluster=virtual", "network=simulated", "network.rate_mbit=20", "network.codec_times=none")


def rows(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def decisions(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "decisions.jsonl").read_text().splitlines()[1:]]


@pytest.fixture(scope="module", autouse=True)
def computing_takes_as_long_each_time() -> Iterator[None]:
    """In the virtual world every look at the clock comes a 1024th of a second after the one before."""
    ticks = count()
    with pytest.MonkeyPatch.context() as patch:
        clock = MarkedBy(lambda: next(ticks) * TICK)
        patch.setattr("gradwire.harness.comm.world.virtual.make_work_clock", lambda device: clock)
        yield


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("blocks") / "simulated"
    train_all_virtually(tiny_run(*AQGB, *NETWORK, "train.steps=12"), str(directory))
    return directory


@pytest.fixture(scope="module")
def simulated_plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run above, but with random rounding of floating-point numbers."""
    directory = tmp_path_factory.mktemp("blocks") / "plain"
    train_all_virtually(tiny_run(*AQGB, *PLAIN, *NETWORK, "train.steps=12"), str(directory))
    return directory


@pytest.mark.parametrize(
    ("steps", "given"),
    [(50, ()), (8, ("train.optimizer=sgd", "train.accumulation=2")), (8, ("train.clip_norm=null",))],
)
def test_uncompressed_it_is_ddp(steps: int, given: tuple[str, ...], tmp_path: Path) -> None:
    """The norms of all gradients, by block or by parameter, differ in their last bits."""
    common = ("cluster=virtual", "cluster.workers=2", "codec=fp32", "topology=broadcast", *given)
    common = (*common, f"train.steps={steps}", "train.save_checkpoint=false")
    common = (*common, "eval.every=50", "measure.vnmse_every=0", "measure.check_hashes=false")
    train_all_virtually(tiny_run(*common), str(tmp_path / "ddp"))
    train_all_virtually(tiny_run(*common, *BLOCKS), str(tmp_path / "blocks"))
    for ours, theirs in zip(rows(tmp_path / "blocks"), rows(tmp_path / "ddp"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    perplexities = [load_run(tmp_path / name).done.final_metric for name in ("ddp", "blocks")]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=1e-6)


def test_the_ratio_follows_what_was_seen(simulated: Path) -> None:
    made = decisions(simulated)
    assert made[0]["first"] == [], "nothing was seen before the first step"
    planned = [row for row in made if row["first"]]
    assert all(4 <= bits <= 32 for row in planned for bits in row["first"])
    assert any(bits < 32 for row in planned for bits in row["first"])
    ratios = [row["codec/ratio"] for row in rows(simulated)]
    assert ratios[0] == 1.0 and 0.125 <= min(ratios) < 1.0
    assert any(sum(row["more"]) for row in planned), "some block was refined"


def test_forward_passes_wait_for_blocks_of_the_step_before(simulated: Path) -> None:
    for number, trace in timed_steps(simulated):
        awaited = [one.steps_back for one in trace[0].computation if isinstance(one, Await)]
        assert awaited == [*([1] * 3 if number else []), *[0] * 3]


def test_floating_point_numbers_are_refined_by_ten_bits_or_more_where_they_begin_anew(
    simulated_plain: Path,
) -> None:
    planned = [row for row in decisions(simulated_plain) if row["first"]]
    pairs = {pair for row in planned for pair in zip(row["first"], row["more"], strict=True)}
    assert any(first < 10 <= more for first, more in pairs)
    assert all(more >= 10 or not more for first, more in pairs if first < 10)


@pytest.mark.parametrize(("run", "given"), [("simulated", ()), ("simulated_plain", PLAIN)])
def test_an_interruption_changes_neither_bits_nor_times(
    run: str, given: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It comes where blocks are refined, and their collectives still under way."""
    stopped, simulated = 9, request.getfixturevalue(run)
    assert sum(decisions(simulated)[stopped - 2]["more"])
    config, directory = tiny_run(*AQGB, *given, *NETWORK, "train.steps=12"), tmp_path / "parts"
    for stop_after in (stopped, None):
        train_all_virtually(config, str(directory), stop_after)
    assert load_run(directory).done.resumed_after == [stopped]
    assert decisions(directory) == decisions(simulated)
    assert rows(directory) == rows(simulated)
    assert outcome(directory) == outcome(simulated)


@pytest.mark.parametrize("given", [(), PLAIN], ids=["embedded", "plain"])
def test_real_equals_virtual_that_follows_it(
    given: tuple[str, ...], tmp_path: Path, workers: Workers
) -> None:
    """Real links are slow enough for a plan; some senders may run out of time, which is on record."""
    config = tiny_run(*AQGB, *given, "network=paced", "network.rate_mbit=20", "train.steps=8")
    real, run = tmp_path / "real", workers(SIZE)
    assert run(train_rank, config, str(real), None, 5) == [False] * SIZE
    assert run(train_rank, config, str(real), opened(config, real)) == [True] * SIZE
    assert any(row["first"] for row in decisions(real))
    following = (f"codec.decisions={real / 'decisions.jsonl'}", "train.steps=8", "cluster=virtual")
    train_all_virtually(tiny_run(*AQGB, *given, *following), str(tmp_path / "virtual"))
    ours, theirs = (
        [(row["loss"], row["grad_norm"], row.get("vnmse")) for row in rows(tmp_path / name)]
        for name in ("virtual", "real")
    )
    assert ours == theirs


def test_without_a_limit_it_is_uncompressed(tmp_path: Path) -> None:
    fast = (*NETWORK, "network.rate_mbit=1e8", "train.steps=6")
    train_all_virtually(tiny_run(*AQGB, *fast), str(tmp_path / "aqgb"))
    train_all_virtually(
        tiny_run(*BLOCKS, WORKERS, "train.log_every=1", "codec=fp32", *fast), str(tmp_path / "fp32")
    )
    assert all(set(row["first"]) <= {32} for row in decisions(tmp_path / "aqgb"))
    assert any(row["first"] for row in decisions(tmp_path / "aqgb"))
    weights = [(tmp_path / n / "checkpoint" / "model.safetensors").read_bytes() for n in ("aqgb", "fp32")]
    assert weights[0] == weights[1]


def test_under_an_extreme_limit_the_floor_holds(tmp_path: Path) -> None:
    slow = (*NETWORK, "network.rate_mbit=0.5", "train.steps=6", "codec.floor=0.1875")
    train_all_virtually(tiny_run(*AQGB, *slow), str(tmp_path / "run"))
    planned = [row for row in decisions(tmp_path / "run") if row["first"]]
    assert planned and all(set(row["first"]) == {6} for row in planned)
    errors = [row["vnmse"] for row in rows(tmp_path / "run") if row.get("vnmse") is not None]
    assert errors and max(errors) < 0.1, "no coordinate is lost"


def test_the_ratio_falls_and_rises_with_the_rate_and_ranks_stay_equal(tmp_path: Path) -> None:
    """The run has stragglers, and packets of one partition; hashes of what is applied are compared."""
    changing = ("network.rate_mbit=60", "network.rate_changes=[[0.4,0.2],[1.6,1]]", "train.steps=36")
    others = ("network.straggler_share=0.3", "network.jitter=0.1", "codec.partition=256", "codec.packet=1024")
    train_all_virtually(tiny_run(*AQGB, *NETWORK, *changing, *others, "eval.every=36"), str(tmp_path / "run"))
    found = rows(tmp_path / "run")
    begun = [row["train_time_s"] - row["step_time_s"] for row in found]
    phases: dict[str, list[float]] = {"fast": [], "slow": [], "fast again": []}
    for at, row in zip(begun, found, strict=True):
        name = "fast" if at < 0.4 else "slow" if at < 1.6 else "fast again"
        phases[name].append(row["codec/ratio"])
    slow = phases["slow"][4:]
    assert set(slow) == {0.125} and min(phases["fast"]) > 0.13 and phases["fast again"][-1] > 0.13
    assert found[0]["codec/packets"] > 4 * found[-1]["codec/packets"]


@contextmanager
def spoiled_norm(call: int) -> Iterator[None]:
    """The so-many-eth norm of a run's gradients is not finite; those of warm-ups count."""
    norm, calls = BlockUpdaters.norm, count()

    def spoiling(means: Sequence[Tensor]) -> float:
        return float("inf") if next(calls) == call else norm(means)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockUpdaters, "norm", staticmethod(spoiling))
        yield


def test_a_skipped_step_changes_no_weights_and_refines_nothing(tmp_path: Path) -> None:
    """A run that follows the decisions, which say what was refined before and after, has the same bits."""
    skipped = 7
    kept = ("measure.save_gradients_at=[6,7,8]", "train.steps=12", "eval.every=1")
    with spoiled_norm(skipped + 3):
        train_all_virtually(tiny_run(*AQGB, *NETWORK, *kept), str(tmp_path / "run"))
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found if row["skipped"]] == [skipped]
    evaluations = [loads(line)["perplexity"] for line in (tmp_path / "run" / "evals.jsonl").open()]
    assert evaluations[skipped] == evaluations[skipped - 1] != evaluations[skipped + 1]
    made = decisions(tmp_path / "run")
    assert sum(made[skipped - 1]["more"]), "the skipped step would have been refined"
    assert sum(made[skipped]["sent"]) and not sum(made[skipped + 1]["sent"])
    following = f"codec.decisions={tmp_path / 'run' / 'decisions.jsonl'}"
    with spoiled_norm(skipped + 3):
        train_all_virtually(tiny_run(*AQGB, "cluster=virtual", *kept, following), str(tmp_path / "following"))
    assert [row["loss"] for row in rows(tmp_path / "following")] == [row["loss"] for row in found]


@pytest.mark.parametrize(
    "given",
    [
        ("cluster.workers=1",),
        ("parallel.num_blocks=1",),
        ("train.accumulation=2", "train.precision=bf16"),
        ("codec.exclude=[*ln_f*,*.bias]",),
    ],
    ids=lambda given: given[0],
)
def test_other_shapes_of_runs(given: tuple[str, ...], tmp_path: Path) -> None:
    """One rank, one block, several micro-batches, a part of a block that is excluded."""
    train_all_virtually(tiny_run(*AQGB, *NETWORK, "train.steps=6", *given), str(tmp_path / "run"))
    assert load_run(tmp_path / "run").done.steps == 6
    assert len({row["loss"] for row in rows(tmp_path / "run")}) == 6, "every step changes the weights"


class Layers(nn.Module):
    """An embedding, whose weight is the output's, and five layers, the third as large as the others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 8)
        self.layers = nn.ModuleList([nn.Linear(8, width) for width in (4, 4, 16, 4, 4)])
        self.head = nn.Linear(8, 4, bias=False)
        self.head.weight = self.embed.weight


def test_blocks_are_whole_layers_of_nearly_the_same_size() -> None:
    found = make_blocks(Layers(), 3, [])
    assert [list(block.parameters) for block in found] == [
        ["embed.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"],
        ["layers.2.weight", "layers.2.bias"],
        ["layers.3.weight", "layers.3.bias", "layers.4.weight", "layers.4.bias"],
    ]
    assert [block.numel for block in found] == [104, 144, 72]
    assert len(found[0].modules) == 4, "the output uses the first block, too"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (
            [["embed"], ["layers.7"]],
            r"parallel.layers=.*: layers.7 of block 1 names no layer; one is embed.weight",
        ),
        ([["embed"], ["layers.[0-3]"]], r"parallel.layers leaves out layers.4.weight and 1 more; add them"),
        ([["*"], ["layers.1"]], r"parallel.layers: layers.1.weight is in blocks 0 and 1; name it once"),
    ],
)
def test_globs_name_every_layer_once(layers: list[list[str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_blocks(Layers(), 0, layers)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ("codec=aqgb", "topology=broadcast"),
            r"codec=aqgb keeps refining a gradient .*; use parallel=blocks",
        ),
        ((*BLOCKS[:3], "codec=aqgb", "topology=ring"), r"codec=aqgb: .* add topology=broadcast; given are "),
        (
            ("parallel=blocks", "codec=fp32"),
            r"bucket_cap_mb=0.02 has no effect with parallel=blocks",
        ),
        ((*BLOCKS, "parallel.num_blocks=40"), r"parallel.num_blocks=40 is more than the model's 4 layers"),
        ((*BLOCKS, "codec=backend"), r"codec=backend sends in the order of its calls"),
        (
            (*BLOCKS, "parallel.num_blocks=4", "parallel.layers=[[],[*]]"),
            r"parallel.layers=.*: block 0 is \[\]; give a list of globs",
        ),
        (
            (*BLOCKS, "parallel.num_blocks=4", "parallel.layers=[[1],[*]]"),
            r"parallel.layers=.*: block 0 is \[1\]; give a list of globs",
        ),
        (
            (*BLOCKS, "parallel.layers=[[*]]"),
            r"num_blocks=3 has no effect with parallel.layers=\[\[\*\]\]",
        ),
        ((*BLOCKS, "codec=aqgb", "codec.exclude=[*]"), r"codec.exclude=\['\*'\] takes all of block 0"),
        ((*BLOCKS, "parallel.find_unused_parameters=true"), r"unknown key parallel.find_unused_parameters"),
    ],
)
def test_refusals(given: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny_run("cluster.workers=2", *given)


def test_blocks_in_another_order_end_the_run(tmp_path: Path) -> None:
    layers = "parallel.layers=[[*.h,*ln_f],[*wte,*wpe]]"
    given = ("parallel=blocks", "parallel.bucket_cap_mb=25", layers, "cluster=virtual", "cluster.workers=2")
    with pytest.raises(RuntimeError, match="block 1 is used before block 0; give blocks in the order of the"):
        train_all_virtually(tiny_run(*given, "codec=fp32"), str(tmp_path / "run"))


def test_a_parameter_without_gradient_ends_the_run(tmp_path: Path) -> None:
    from gradwire.harness.trainer import parts

    build = parts.build_model

    def building(*arguments: Any, **options: Any) -> Any:
        model = build(*arguments, **options)
        model.transformer.h[0].unused = nn.Linear(2, 2)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "build_model", building)
        with pytest.raises(RuntimeError, match=r"transformer.h.0.unused.weight gets no gradient"):
            train_all_virtually(
                tiny_run(*BLOCKS, "cluster=virtual", "cluster.workers=2", "codec=fp32"), str(tmp_path / "run")
            )


def test_given_blocks_take_their_time_and_what_a_forward_pass_waits_is_waiting(tmp_path: Path) -> None:
    """Codecs take no time, so that a step is computation and waits; refinements continue in the forward
    pass."""
    given = (
        *("network.compute_s=0.06", "network.forward_share=0.4"),
        "network.blocks=[[1,0.5,0.2],[1,0.25,0.2],[1,0.25,0.6]]",
    )
    train_all_virtually(tiny_run(*AQGB, *NETWORK, *given, "train.steps=8"), str(tmp_path))
    found = rows(tmp_path)
    for row in found:
        assert row["compute_s"] == pytest.approx(0.06, rel=1e-6)
        assert row["wait_s"] == pytest.approx(row["step_time_s"] - 0.06, rel=1e-6)
        assert row["exposed_comm_s"] == pytest.approx(row["wait_s"], rel=1e-3)
    last_made = 0.4 * 0.06 + 0.6 * 0.6 * 0.06  # before it nothing of the first step can be sent
    assert found[0]["overlap_s"] <= 0.06 - last_made + 1e-9 < found[-1]["overlap_s"]
    assert any(one["more"] and max(one["more"]) for one in decisions(tmp_path))
    own = list(timed_steps(tmp_path))[-1][1][0]
    forward = [one for one in own.computation if isinstance(one, Compute) and one.label == forward_of(0)]
    assert sum(one.end - one.start for one in forward) == pytest.approx(0.06 * 0.4 * 0.5)


def test_a_layer_is_the_innermost_of_two_lists() -> None:
    """The modules of a stage of ResNet, of a transformer, and of a list of experts within its layers."""

    def names(number: int, *paths: str) -> list[list[str]]:
        model = nn.ModuleDict()
        for path in paths:
            inner = model
            for part in path.split("."):
                if part not in inner:
                    inner[part] = nn.ModuleDict()
                inner = inner[part]
            inner["own"] = nn.Linear(1, 1, bias=False)
        return [
            [name.removesuffix(".own.weight") for name in block.parameters]
            for block in make_blocks(model, number, [])
        ]

    assert names(3, "wte", "h.0.attn", "h.0.mlp", "h.1.attn") == [
        ["wte"],
        ["h.0.attn", "h.0.mlp"],
        ["h.1.attn"],
    ]
    assert names(2, "stages.0.layers.0.conv", "stages.0.layers.1.conv") == [
        ["stages.0.layers.0.conv"],
        ["stages.0.layers.1.conv"],
    ]
    deep = ("stages.0.layers.0.experts.0.up", "stages.0.layers.0.experts.1.up", "stages.0.layers.1.norm")
    assert names(2, *deep) == [[*deep[:2]], [deep[2]]]
    with pytest.raises(ValueError, match=r"parallel.num_blocks=3 is more than the model's 2 layers"):
        names(3, *deep)
