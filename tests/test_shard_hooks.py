"""`gradwire.shard_hooks` for models that `fully_shard` has sharded: training, state, refusals, failures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import shard_alike_jobs as scripts
import shard_jobs as jobs
from pool import Workers

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fsdp2.py"


@pytest.mark.parametrize("size", [2, 3])
def test_float32_is_what_fsdp2_does_by_itself(size: int, workers: Workers) -> None:
    """Results over uneven shards differ only by the order of float32 sums."""
    plain = workers(size)(jobs.train, 4, None)
    hooked = workers(size)(jobs.train, 4, {"codec": "fp32", "check_hashes": True})
    assert hooked[0][0] == pytest.approx(plain[0][0], rel=1e-6)
    assert len({held for _, held, *_ in hooked}) == 1
    assert plain[0][2] == 0 < hooked[0][2]


@pytest.mark.parametrize(
    "options",
    [
        jobs.SDP4BIT,
        {"codec": "dynamiq", "weights": "qw", "topology": "butterfly", "check_hashes": True},
        {"codec": "linear", "weights": "qwd", "weight_bits": 8, "weight_group": 128, "ef": True},
    ],
    ids=["sdp4bit", "qw", "feedback"],
)
def test_quantized_training_stays_close_and_identical(options: dict[str, Any], workers: Workers) -> None:
    plain = workers(4)(jobs.train, 4, None)
    hooked = workers(4)(jobs.train, 4, options)
    assert len({held for _, held, *_ in hooked}) == 1, "all ranks compute with the same weights"
    assert hooked[0][0] == pytest.approx(plain[0][0], rel=0.02)
    assert hooked[0][0] != plain[0][0]


def test_weights_in_bfloat16_are_gathered_and_differ_from_float32(workers: Workers) -> None:
    found = workers(2)(jobs.bf16, {"codec": "all_to_all", "weights": "qwd", "check_hashes": True})
    exact = workers(2)(jobs.bf16, {"codec": "fp32"})
    float32 = workers(2)(jobs.train, 4, {"codec": "fp32"})
    assert len({held for _, held, *_ in found}) == 1
    assert found[0][0] == pytest.approx(exact[0][0], rel=0.05)
    assert exact[0][0] != float32[0][0] and exact[0][1] != float32[0][1]
    assert 2 * exact[0][3] == float32[0][3] > 0, "bytes of weights"


@pytest.mark.parametrize("codec", [{"codec": "all_to_all"}, {"codec": "linear", "bits": 4}])
def test_gradients_are_those_of_the_codec_bit_for_bit(codec: dict[str, Any], workers: Workers) -> None:
    assert workers(4)(jobs.scattered_alike, codec) == [True] * 4


@pytest.mark.parametrize("evaluate", [False, True], ids=["trained", "evaluated"])
def test_a_resumed_run_is_the_undisturbed_one(evaluate: bool, workers: Workers) -> None:
    """With what quantized differences and error feedback remember; also where the weights have been gathered
    since the last update, by an evaluation."""
    options = {"codec": "linear", "bits": 4, "ef": True, "weights": "qwd", "weight_group": 32}
    for undisturbed, resumed in workers(2)(jobs.resume, options, evaluate):
        assert resumed == undisturbed


def test_weights_that_have_not_changed_are_not_sent_again(workers: Workers) -> None:
    for (first, second, third), held, exact in workers(2)(jobs.gathered_again):
        assert held
        assert exact, "weights that the script replaces"
        assert second == 2, "a byte for each module says that nothing has changed"
        assert third < 0.2 * first, "differences of 4 bits after exact weights"


def test_a_skipped_step_is_forgotten(workers: Workers) -> None:
    for remembers, alike, again in workers(2)(jobs.skip):
        assert remembers and alike
        assert again.startswith("RuntimeError: skip_step(): no backward pass was synchronized")


def test_detached_hooks_leave_plain_fsdp2(workers: Workers) -> None:
    assert workers(2)(jobs.detached_is_plain) == [True, True]


WEIGHT_GROUP = r"weight_group=2049"
"""The setting that only rank 1 has."""

REFUSALS = (
    r"the model already has hooks; call detach\(\) on what shard_hooks\(\) returned",
    r"the model sums gradients in float64, and codecs do so in float32; use MixedPrecisionPolicy\(reduce",
    r"the model gathers weights in float64, which cannot be quantized; use bfloat16 and float32",
    r"and Net has no such module; call fully_shard\(model\) first",
    r"codec=powersgd has no scatter; choose one of fp32",
    r"topology=broadcast computes no partial sums and has no reduce-scatter",
    r"exclude=.*bias.* has no effect",
    r"weights='qwd4': choose one of exact, qw, qwd",
    r"ranks_per_node=3",
    r"gathers weights in float16, which cannot be quantized; use bfloat16 and float32",
    WEIGHT_GROUP,
    r"ranks disagree: rank 0 has seed=0, rank 1 has seed=1",
    r"attach\(\) needs a DistributedDataParallel model, .*use gradwire.shard_hooks\(\)",
    r"weight_bits=8 has no effect with weights=exact; leave it out, or choose qw or qwd",
)


def test_what_cannot_work_is_refused_in_one_line(workers: Workers) -> None:
    found = workers(2)(jobs.refusals)
    by_rank_1 = found[0][REFUSALS.index(WEIGHT_GROUP)]
    assert by_rank_1.startswith("ValueError: shard_hooks(): rank 1 refuses: "), by_rank_1
    for said in found:
        for text, expected in zip(said, REFUSALS, strict=True):
            assert text.startswith("ValueError: "), text
            assert re.search(expected, text), (text, expected)
            assert "\n" not in text and len(text) < 320, text


def test_a_refusal_by_one_rank_of_a_subset_reaches_the_others(workers: Workers) -> None:
    first, second, third, fourth = workers(4)(jobs.refused_by_one)
    assert first.startswith("ValueError: weights='qwd4': choose one of")
    assert second.startswith("ValueError: shard_hooks(): rank 0 refuses: weights='qwd4'")
    assert re.search(r"ValueError: shard_hooks\(\): rank 1 refuses: .*float16, which cannot", third), third
    assert "float16, which cannot be quantized" in fourth and "refuses" not in fourth


def test_one_rank_is_refused(workers: Workers) -> None:
    for text in workers(2)(jobs.alone):
        assert text.startswith("ValueError: shard_hooks(): FSDP2 neither gathers nor scatters on one rank")


def test_a_pass_that_the_script_ends_is_a_skipped_step(workers: Workers) -> None:
    for words, forgotten, steps in workers(2)(jobs.interrupted):
        assert words == "ValueError: the script's own words"
        assert forgotten
        assert steps == [1, 2, 3]


def test_a_module_that_scatters_twice_in_a_pass_is_refused(workers: Workers) -> None:
    for text in workers(2)(jobs.scattered_twice):
        assert re.match(r"SynchronizationError: rank \d, step 0: .*middle scatters gradients twice in", text)
        assert "\n" not in text


@pytest.mark.parametrize("size", [2, 4])
def test_scripts_as_fsdp2s_users_write_them(size: int, workers: Workers) -> None:
    """They train as without hooks: on two ranks bit for bit, on more but for the order of sums."""
    four = {name for name in scripts.SCRIPTS if re.search("of shards|to two ranks", name)}
    names = [name for name in scripts.SCRIPTS if name not in four]
    if size == 4:
        names = [*sorted(four), "default", "bfloat16", "float64", "unused", "replicas"]
    for found in workers(size)(scripts.alike, names):
        assert [*found] == names
        for name, difference in found.items():
            exact = size == 2 or "of shards" in name  # two replicas of two shards
            assert difference <= (0 if exact else 0.02 if name == "bfloat16" else 1e-6), name


@pytest.mark.parametrize("weights", ["qw", "qwd"])
def test_weights_given_away_after_forward_are_the_same_for_backward(weights: str, workers: Workers) -> None:
    """Quantized weights are sent a second time; the ranks keep differences added up, and send a byte for each
    of two modules and passes, but for the first micro-batch's update."""
    for (kept, once), (given, twice), (part, some) in workers(4)(scripts.resharded, weights):
        assert kept == given == part
        assert once < some and once < twice
        if weights == "qwd":
            assert twice == once + 3 * 2 * 6
            assert some > twice


@pytest.mark.parametrize("options", [{"codec": "linear", "bits": 4, "ef": True, "weights": "qwd"}])
def test_replicas_of_shards_hold_the_same_and_resume(options: dict[str, Any], workers: Workers) -> None:
    found = workers(4)(scripts.of_shards, options)
    for undisturbed, resumed, kept, remembers, sent in found:
        assert undisturbed == resumed
        assert kept and remembers and sent > 0
    first, second, *others = [undisturbed for undisturbed, *_ in found]
    assert others == [first, second] and first != second


def test_an_error_in_one_replica_is_reported_along_both_dimensions(workers: Workers) -> None:
    """The rank that shares no dimension with the failed one may lose its peers before they have the
    reason."""
    told = workers(4)(scripts.fails_in_one)
    assert all(text.startswith("SynchronizationError: rank ") and "\n" not in text for text in told)
    assert all("codec=topk has no scatter" in text for text in told[1:])


def test_replicas_are_refused_on_all_ranks_in_one_line(workers: Workers) -> None:
    for said in workers(4)(scripts.replica_refusals):
        quantized, replicas, shards, codec, attached = said
        assert re.search(r"ValueError: .* holds its weights whole on every rank .*; use weights=", quantized)
        assert re.search(r"ValueError: .*seed=", replicas) and re.search(r"ValueError: .*seed=", shards)
        assert re.search(r"ValueError: .*codec=powersgd has no scatter", codec)
        assert "use gradwire.shard_hooks()" in attached
        assert not any("\n" in each for each in said)


@pytest.mark.parametrize(
    "codec", [{"codec": "powersgd", "rank": 1}, {"codec": "dynamiq", "exclude": ["*net.last*"]}]
)
def test_replicas_everywhere_have_all_codecs(codec: dict[str, Any], workers: Workers) -> None:
    (first, sent), (second, _) = workers(2)(scripts.replicated, codec)
    (_, exact), _ = workers(2)(scripts.replicated, {"codec": "fp32"})
    assert first == second and 0 < sent < 0.6 * exact


def test_giving_weights_away_can_begin_later(workers: Workers) -> None:
    assert workers(2)(jobs.reshard_later) == [True, True]


def test_a_parameter_without_a_gradient_is_refused_in_one_line(workers: Workers) -> None:
    for text in workers(2)(scripts.without_gradient):
        assert re.match(
            r"SynchronizationError: rank \d, step 0: .*call set_reduce_scatter_unused_params", text
        )
        assert "\n" not in text


@pytest.mark.parametrize("codec", ["fp32", "all_to_all"])
def test_gradients_can_be_divided_by_other_numbers(codec: str, workers: Workers) -> None:
    assert workers(3)(jobs.divided, codec) == [[True] * 3] * 3


def test_an_error_in_a_hook_ends_the_pass_on_every_rank(workers: Workers) -> None:
    (lost, _, after), (failed, cause, again) = workers(2)(jobs.fail)
    assert failed.startswith("SynchronizationError: rank 1, step 0: ValueError: codec=topk has no scatter")
    assert cause == "ValueError: codec=topk has no scatter"
    assert again == failed
    assert lost.startswith("SynchronizationError: rank 0, step 0: ") and after == lost


def test_a_forked_child_may_not_synchronize(workers: Workers) -> None:
    for *children, itself in workers(2)(jobs.forked):
        for text in children:
            assert text.startswith("RuntimeError: this process was forked from a rank and has none of its")
        assert itself == "nothing"


def test_a_state_that_is_not_finite_is_refused(workers: Workers) -> None:
    for key, bad, good in workers(2)(jobs.damaged):
        assert f"the state is damaged: its {key} holds infinity; load one that was saved while" in bad
        assert good == "nothing"


def test_the_example_runs(workers: Workers) -> None:
    printed, nothing = workers(2)(jobs.run_example, str(EXAMPLE))
    first = re.search(r"step 0: loss (\S+)", printed)
    last = re.search(r"loss (\S+); rank 0 sent (\d+) bytes", printed)
    assert first is not None and last is not None and not nothing
    assert float(last[1]) < 0.5 * float(first[1])
    in_bits = 8 * int(last[2]) / 100 / 16_897  # per step and coordinate, as half of a vector of each is sent
    assert 4 < in_bits < 8, "8.25 of gradients, and 4 and a little of weights"
