"""A synchronizer's state, the plain model after it, and its memory."""

from __future__ import annotations

from typing import Any

import attach_state_jobs as jobs
import pytest
import torch
from pool import Workers

from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.library.saved import SavedState

OPTIONS: dict[str, dict[str, Any]] = {
    "topk": {"fraction": 0.1},
    "randomk": {"fraction": 0.1},
    "onebit": {"block": 64},
}
EXACT = ("fp32", "bf16", "backend")
CODECS = sorted(
    name
    for name, codec in codec_classes().items()
    if codec.__module__.startswith("gradwire.") and make_codec(name).supports_stages(1) is None
)  # other tests register theirs in this process, and not in the workers'; attach() refuses some


def every_codec() -> list[dict[str, Any]]:
    """All codecs that remember something or draw at random; those that take error feedback have it on."""
    cases: list[dict[str, Any]] = []
    for name in sorted({*CODECS} - {*EXACT}):
        options = OPTIONS.get(name, {})
        cases.append({"codec": name, **options})
        try:
            refused = make_codec(name, ef=True, **options).supports("ring", 2, Layout.flat(2048))
        except ValueError:  # it takes none
            continue
        if refused is None:
            cases.append({"codec": name, "ef": True, **options})
    cases.append({"codec": "dynamiq", "ef": True, "widths": [8], "bits": None})
    return [*cases, {"codec": "mxfp8", "exclude": ["last.*", "*.bias"], "ef": True}]


def test_every_stateful_codec_is_among_them() -> None:
    kept = {(case["codec"], "ef" in case) for case in every_codec()}
    stateful = {name for name in CODECS if name not in EXACT and make_codec(name).traits.stateful}
    assert {"mxfp8", "mxfp6", "mxfp4", "omnireduce", "powersgd"} <= stateful
    assert {(name, False) for name in stateful} <= kept
    assert {("topk", True), ("onebit", True), ("dynamiq", True), ("thc", True)} <= kept


@pytest.mark.parametrize(
    ("size", "ddp", "before", "cases"),
    [
        (2, {}, 3, every_codec()),
        (3, {}, 3, every_codec()[::6]),
        (2, {}, 1, every_codec()[::5]),  # before DDP has settled its buckets
        (2, {}, 0, [{"codec": "mxfp8"}]),
        (2, {"static_graph": True}, 3, every_codec()[::5]),
        (2, {"find_unused_parameters": True}, 3, every_codec()[::5]),
        (2, {"gradient_as_bucket_view": True}, 3, [{"codec": "dynamiq"}, {"codec": "topk", "ef": True}]),
    ],
)
def test_continued_in_a_cold_process_is_undisturbed(
    size: int, ddp: dict[str, Any], before: int, cases: list[dict[str, Any]], workers: Workers
) -> None:
    """Bit for bit: DDP's buckets, which a new process would only settle after its first backward pass, are
    part of the state."""
    results = workers(size)(jobs.undisturbed, cases, ddp, before)
    saved = [[kept for kept, _ in own] for own in results]
    ended = workers(size)(jobs.continued, cases, ddp, before, saved)
    for number, case in enumerate(cases):
        assert ended[0][number] == results[0][number][1], case
        assert len({own[number] for own in ended}) == 1, case


def test_a_state_is_taken_up_where_training_has_gone_on(workers: Workers) -> None:
    for first, second in workers(2)(jobs.rolled_back):
        assert first == second


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "onebit", "ef": True},
        {"codec": "topk", "fraction": 0.1, "ef": True, "exclude": ["last.*"]},
        {"codec": "powersgd", "rank": 2, "start_step": 1},
    ],
    ids=lambda options: str(options["codec"]),
)
def test_a_skipped_pass_leaves_no_trace(options: dict[str, Any], workers: Workers) -> None:
    """Codecs that draw nothing at random: the number of the step, which is counted all the same, is part of
    the key."""
    for kept, alike, steps, nothing in workers(2)(jobs.skipped, options):
        assert kept
        assert alike
        assert steps == [7, 6]
        assert (
            nothing
            == ["RuntimeError: skip_step(): no backward pass was synchronized since the last step ended"] * 2
        )


@pytest.mark.parametrize(("size", "skipping", "late"), [(2, [0], True), (3, [1, 2], False)])
def test_a_step_skipped_by_some_ranks_is_an_error_on_all(
    size: int, skipping: list[int], late: bool, workers: Workers
) -> None:
    for rank, (called, after) in enumerate(workers(size)(jobs.skipped_by_some, skipping, late)):
        if rank not in skipping:
            assert called == "not called"
            assert f"rank {rank}, step 2: rank {rank} lost rank" in after[0]
            assert not late or "had failed: TimeoutError: skip_step(): " in after[0]
        else:
            assert called.startswith("TimeoutError: skip_step(): rank ")
            assert after[0] == f"SynchronizationError: rank {rank}, step 1: {called}"
        assert after[0].startswith("SynchronizationError: ")
        assert after[0] == after[1]
    for said in workers(2)(jobs.skipped_and_measured):
        assert "ranks disagree: rank 0 has call=skip_step(), rank 1 has call=measure_vnmse()" in said


def test_wrong_states_are_refused_on_all_ranks(workers: Workers) -> None:
    for rank, said in enumerate(workers(2)(jobs.wrong_states)):
        found = said
        other_rank, later, odd, damaged, nonsense, *found = found
        assert ("rank 1 was given the state of rank 0" if rank else "load_state_dict(): rank 1") in other_rank
        assert "rank 0 has step=3, rank 1 has step=4" in later
        assert "not a state of a synchronizer, it has no step" in odd
        assert "damaged" in damaged
        assert "nonsense" in nonsense
        settings, short, norms, nan, missing, none, path, saved, copied, *found = found
        assert "None is not a state of a synchronizer; give the result of state_dict()" in none
        assert "'saved.pt' is not a state of a synchronizer; give the result of state_dict()" in path
        for text in (saved, copied):
            assert text.startswith(
                "TypeError: a model with a codec cannot be pickled or copied; save model.m"
            )
        feedback, no_state, cap, buckets, model, names, *found = found
        assert "damaged" in settings
        assert "residual/first.bias is torch.float32[63], this model's is torch.float32[64]" in short
        assert "this model's is torch.float32[5]" in norms
        assert "the state is damaged: its residual/first.bias holds NaN; load one that was saved" in nan
        assert "no such file: saved" in missing
        assert feedback.endswith("codec.ef=True, this is codec.ef=None; attach with codec.ef=True")
        assert "OneBit has no state" in no_state
        assert "wrap the model with the bucket_cap_mb it was saved with" in cap
        assert "wrap the model with the bucket_cap_mb it was saved with" in buckets
        assert "another model: it was saved with model=6 parameters of" in model
        assert "another model: it has" in names
        frozen, frozen_loosely, codec, seed, detached = found
        assert codec.endswith("codec=onebit, this is codec=topk; attach with codec=onebit")
        assert seed.endswith("seed=0, this is seed=4; attach with seed=0, or load with strict=False")
        assert "only one of them trains first.bias, first.weight" in frozen
        assert frozen == frozen_loosely
        assert "RuntimeError: the synchronizer has been detached" in detached
        for text in said[:-1]:
            assert text.startswith("ValueError: ") or text in (saved, copied)


@pytest.mark.parametrize("ddp", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
@pytest.mark.parametrize("size", [2, 3])
def test_detach_gives_plain_ddp_back(size: int, ddp: dict[str, Any], workers: Workers) -> None:
    for alike, differs, sent, text in workers(size)(jobs.detached, ddp):
        assert alike
        assert differs
        assert sent
        assert "SynchronizationError" in text
        assert "not registered" not in text
        assert "detach()" in text


def test_a_model_trains_on_after_an_error(workers: Workers) -> None:
    assert workers(2)(jobs.detached_after_an_error) == [True, True]


def test_vnmse_is_measured_on_request(workers: Workers) -> None:
    results = workers(2)(jobs.measured)
    assert results[0] == results[1]
    before, error, kept = results[0]
    assert before is None
    assert error == kept
    assert error is not None
    assert 1e-4 < error < 0.5


def test_nothing_grows_with_steps(workers: Workers) -> None:
    """The short form of `make growth`, which takes 10,000 steps: 18 spans a step would be 1800 objects."""
    for settled, ended in workers(2)(jobs.tidy, 200, 2):
        assert ended.objects - settled.objects < 100
        assert ended.descriptors <= settled.descriptors
        assert ended.keys <= settled.keys


def test_parameters_are_checked_once_however_many_states_are_loaded(workers: Workers) -> None:
    assert workers(2)(jobs.checks_when_loaded) == [[0, 1, 1, 1, 1, 0]] * 2


def test_models_are_freed_with_their_connections(workers: Workers) -> None:
    for gone, descriptors, threads in workers(2)(jobs.freed):
        assert gone
        assert descriptors <= 0
        assert threads == 0


@pytest.mark.parametrize(("broken", "reason"), [("hook", "KeyError: "), ("codec", "codec returned")])
def test_a_synchronizer_that_failed_keeps_no_model(broken: str, reason: str, workers: Workers) -> None:
    for gone, (first, again, cause, once_more) in workers(2)(jobs.failed_and_kept, broken):
        assert gone
        assert first == again
        assert first.startswith("SynchronizationError: ")
        assert reason in first
        assert reason in cause
        assert cause == once_more


def test_a_store_that_is_gone_is_an_error(workers: Workers) -> None:
    for text in workers(2)(jobs.without_store):
        assert text.startswith(
            "ConnectionError: the process group's store, through which ranks agree, cannot"
        )
        assert "\n" not in text


@pytest.mark.parametrize("start", [torch.zeros(2, 7), torch.zeros(8)])
def test_the_starts_of_other_matrices_are_refused(start: torch.Tensor) -> None:
    parameters = {"weight": torch.zeros(4, 8)}
    SavedState(3, {}, None, None, {"q/weight": torch.zeros(2, 8)}).check(parameters)
    with pytest.raises(ValueError, match="another model: its q/weight is"):
        SavedState(3, {}, None, None, {"q/weight": start}).check(parameters)


def test_a_state_without_a_setting_is_another_settings() -> None:
    own = {"model": "m", "DistributedDataParallel's bucket_bytes_cap": "1", "segments": "4"}
    states = [SavedState(3, {**own, "segments": number}, None, None, {}).pack(0) for number in ("4", "2")]
    assert SavedState.unpack(states[0], 0, own, strict=True).step == 3
    with pytest.raises(ValueError, match="saved with segments=2, this is segments=4; attach with segments=2"):
        SavedState.unpack(states[1], 0, own, strict=True)
    del own["segments"]
    with pytest.raises(ValueError, match="saved with segments=4, this is segments=None"):
        SavedState.unpack(states[0], 0, own, strict=True)
