"""The metrics of training: losses, the parts of a step, bytes and errors."""

from __future__ import annotations

from typing import Any

from gradwire.harness.timing.measure.metric import (
    EVALUATION,
    MEGABYTES,
    MILLISECONDS,
    PERCENT,
    SHORT,
    STEP,
    SUMMARY,
    Metric,
)


def _time(key: str, label: str, meaning: str, **about: Any) -> Metric:
    """Seconds of a step, from the ranks' spans."""
    usual: dict[str, Any] = {"timed": True, "spans": True, "shown": MILLISECONDS}
    return Metric(key, label, "s", meaning, **usual | {"places": ("step", "summary"), "mean": True} | about)


def _part(key: str, label: str, meaning: str, **about: Any) -> Metric:
    """One of the four parts that sum to the step."""
    about |= {"ranks": "slowest", "better": "lower", "section": "step", "plot": "parts"}
    return _time(key, label, meaning, **about)


def _hiding(key: str, label: str, unit: str, meaning: str, **about: Any) -> Metric:
    """A metric of how well communication overlaps with computation (AQGB)."""
    return Metric(key, label, unit, meaning, timed=True, section="overlap", **{"shown": SHORT} | about)


def _observed(key: str, label: str, unit: str, meaning: str, **about: Any) -> Metric:
    """A metric of a process or its machine during a step."""
    usual: dict[str, Any] = {"places": STEP + SUMMARY, "mean": True, "section": "machine", "shown": SHORT}
    return Metric(key, label, unit, meaning, observed=True, **usual | about)


TRAINING = (
    Metric(
        *(
            "loss",
            "loss",
            "nats",
            "cross-entropy per predicted token or label, mean over all that count in the step",
        ),
        places=STEP + EVALUATION,
        ranks="mean",
        better="lower",
    ),
    Metric("train_loss", "training loss", "nats", "mean over the last ten steps", better="lower"),
    Metric("perplexity", "perplexity", "", "exp of the held-out loss", EVALUATION, better="lower"),
    Metric(
        "accuracy", "accuracy", "", "share of held-out examples that are right", EVALUATION, better="higher"
    ),
    Metric(
        *("matthews", "Matthews correlation", "", "of predicted and true labels, −1 to 1", EVALUATION),
        better="higher",
    ),
    Metric(
        "final_metric", "final metric", "", "the metric at the last evaluation", SUMMARY, section="result"
    ),
    Metric(
        *("train_time_s", "training clock", "s", "without evaluations, checkpoints and measured errors"),
        places=STEP + EVALUATION + SUMMARY,
        ranks="max",
        better="lower",
        timed=True,
    ),
    Metric("wall_time_s", "wall clock", "s", "everything", EVALUATION + SUMMARY, better="lower"),
    Metric("lr", "learning rate", "", "of the step's update", STEP, plot="training"),
    Metric(
        "grad_norm", "gradient norm", "", "of the mean gradient, before it is clipped", STEP, plot="training"
    ),
    Metric(
        *("skipped_steps", "steps skipped", "", "steps without an update, their gradients not finite"),
        places=SUMMARY,
        better="lower",
        section="result",
    ),
)

TIMES = (
    Metric(
        *("step_time_s", "step", "s", "of the slowest rank"),
        places=STEP,
        ranks="slowest",
        better="lower",
        timed=True,
        section="step",
        shown=MILLISECONDS,
    ),
    _part("compute_s", "compute", "forward, backward, optimizer"),
    _part("compression_s", "compression", "codec work that computation does not hide"),
    _part(
        *("exposed_comm_s", "exposed comm", "bytes in flight and no other work"),
        in_words="exposed communication",
    ),
    _part("other_s", "other", "the rest of the step"),
    Metric(
        *("rounds_per_second", "steps/s", "1/s", "one over the mean step"),
        places=SUMMARY,
        better="higher",
        timed=True,
        section="step",
        shown=SHORT,
    ),
    Metric(
        *("tokens_per_s", "tokens/s", "1/s", "of packed text, that all ranks train on"),
        places=STEP + SUMMARY,
        better="higher",
        timed=True,
        shown=SHORT,
    ),
    _time("comm_s", "communicating", "bytes in flight", places=STEP, ranks="max", mean=False),
    _hiding(
        *("overlap_s", "computing while sending", "s", "a rank computes with bytes in flight"),
        places=STEP + SUMMARY,
        ranks="min",
        better="higher",
        spans=True,
        mean=True,
        peers=True,
        shown=MILLISECONDS,
    ),
    _hiding(
        *(
            "wait_s",
            "waiting for gradients",
            "s",
            "from the last gradient to the update, and in the forward pass",
        ),
        places=STEP + SUMMARY,
        ranks="max",
        better="lower",
        spans=True,
        mean=True,
        peers=True,
        shown=MILLISECONDS,
    ),
    _hiding(
        *("row", "ROW", "", "computing while sending over waiting, their means; inf when no rank waits"),
        places=SUMMARY,
        better="higher",
    ),
    _hiding(
        *("osf", "OSF", "", "computation over itself and the communication that it does not hide"),
        places=STEP + SUMMARY,
        ranks="min",
        better="higher",
        spans=True,
        mean=True,
        peers=True,
    ),
    _hiding(
        *("utilization", "link used", "", "what the busiest rank sent over what its link could have carried"),
        places=SUMMARY,
        shown=PERCENT,
    ),
)

MACHINE = (
    _observed(
        *("compute_cpu_s", "compute, CPU time", "s", "of the thread that computes; on CPUs"),
        ranks="slowest",
        better="lower",
        shown=MILLISECONDS,
    ),
    _observed(
        *("compute_cpu_share", "compute, on a CPU", "", "CPU time of compute over its time"),
        places=SUMMARY,
        mean=False,
        better="higher",
        shown=PERCENT,
    ),
    _observed(
        *("codec_cpu_s", "codec work, CPU time", "s", "of the threads that do it; on CPUs"),
        ranks="mean",
        better="lower",
        shown=MILLISECONDS,
    ),
    _observed(
        *("worker_cpu_s", "CPU time of all workers", "s", "of all their threads"),
        ranks="sum",
        section=None,
        shown=MILLISECONDS,
    ),
    _observed(
        *("switches", "switches", "", "involuntary context switches of all workers, per step"),
        ranks="sum",
        better="lower",
    ),
    _observed(
        *("cpu_busy", "CPUs in use", "", "by all processes of the machine, of several the busiest"),
        ranks="max",
    ),
    _observed(
        *("others_cpus", "by others", "", "CPUs in use by processes other than the workers"),
        places=SUMMARY,
        mean=False,
        better="lower",
    ),
    _observed(
        *("cpu_pressure", "CPU pressure", "", "part of the time in which some task waited for a CPU"),
        ranks="max",
        better="lower",
        shown=PERCENT,
    ),
    Metric(
        *(
            "common_step_s",
            "step, common computation",
            "s",
            "with the computation that a comparison shares",
        ),
        better="lower",
        timed=True,
        shown=MILLISECONDS,
    ),
    Metric(
        *("captured_buckets", "captured", "", "buckets of a step whose rounds are captured in CUDA graphs"),
        places=SUMMARY,
    ),
    _observed(
        *("cpu_steal", "CPUs stolen", "", "by the hypervisor, of the machine's"),
        ranks="max",
        better="lower",
    ),
)

ACTIVITY_PREFIX = "activity/"


def _activity(name: str, label: str, meaning: str, **about: Any) -> Metric:
    """A metric of what a codec's mechanism did; records lack it where a codec has no such thing."""
    usual: dict[str, Any] = {"places": STEP + SUMMARY, "section": "activity", "shown": SHORT}
    return Metric(f"{ACTIVITY_PREFIX}{name}", label, "", meaning, **usual | about)


ACTIVITY = (
    _activity("compressed", "compressed", "share of coordinates sent as factors, not as they are"),
    _activity("rank", "rank", "mean over the coordinates that are compressed"),
    _activity("ratio", "bits sent at first", "first bits of a gradient over its 32"),
    _activity("blocks", "blocks sent", "share of blocks that some worker chose"),
    _activity("at_bound", "at a bound", "share of what the codec decides (ranks, bits) that is at a bound"),
    _activity("excluded", "excluded", "share of coordinates in parameters that go past the codec"),
    _activity(
        "captured",
        "captured",
        "share of a step's buckets whose rounds are captured in CUDA graphs",
        places=SUMMARY,
    ),
)
"""The work of a codec's mechanism, so that an idle one shows: `Codec.activity` returns these by name."""

BYTES = (
    Metric(
        *("vnmse", "vNMSE", "", "squared error of the codec's mean over the energy of the exact one"),
        places=STEP,
        better="lower",
        section="bytes",
        shown=SHORT,
    ),
    Metric(
        *(
            "zeroed_share",
            "turned to 0",
            "",
            "of the exact mean's coordinates that are not 0 (parallel=sharded)",
        ),
        places=STEP,
        better="lower",
        shown=PERCENT,
    ),
    Metric(
        *("weight_error", "weight error", "", "norm of main less model weights over that of the main ones"),
        places=STEP,
        better="lower",
        shown=SHORT,
    ),
    Metric("bytes_sent", "sent", "B", "by all ranks together", STEP, "sum", "lower"),
    Metric(
        *("wire_bits_per_coordinate", "wire bits per coordinate", "bit", "of an encoded gradient"),
        places=STEP + SUMMARY,
        better="lower",
        section="bytes",
    ),
    *(
        Metric(
            *(f"wire_bits_by_level.{level}", f"wire bits {where}", "bit", f"the part {where}, if several"),
            places=STEP + SUMMARY,
            better="lower",
            section="bytes",
        )
        for level, where in (("local", "inside nodes"), ("node", "between nodes"))
    ),
    Metric(
        *("bytes_per_step_per_rank", "MB sent per step and rank", "B", "mean over ranks and steps"),
        better="lower",
        section="bytes",
        shown=MEGABYTES,
    ),
)
