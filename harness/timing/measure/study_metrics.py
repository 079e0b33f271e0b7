"""The metrics of studies: all-reduces, operations, saved gradients, scores."""

from __future__ import annotations

from typing import Any

from gradwire.harness.timing.measure.metric import (
    FULL_MILLISECONDS,
    FULL_PERCENT,
    MILLISECONDS,
    NATS,
    PLAIN,
    SHORT,
    SUMMARY,
    Better,
    FigureFormat,
    Metric,
)


def _speed(key: str, label: str, unit: str, meaning: str, better: Better | None, **about: Any) -> Metric:
    """A figure of one benchmarked operation."""
    return Metric(
        key, label, unit, meaning, SUMMARY, None, better, section="operation", **{"shown": SHORT} | about
    )


def _predicted(
    key: str, label: str, unit: str, meaning: str, better: Better | None, shown: FigureFormat = MILLISECONDS
) -> Metric:
    """A figure of a predicted step."""
    return Metric(key, label, unit, meaning, SUMMARY, None, better, shown=shown, timed=True)


def _gradients(key: str, label: str, unit: str, meaning: str, shown: FigureFormat = PLAIN) -> Metric:
    """A metric of saved gradients, by the dotted key of `statistics.json`."""
    return Metric(key, label, unit, meaning, SUMMARY, section="gradients", shown=shown)


def _evolution(key: str, label: str, meaning: str, unit: str = "", shown: FigureFormat = PLAIN) -> Metric:
    """A metric of how gradients change over training, by the key of `statistics.json`."""
    return Metric(f"evolution.{key}", label, unit, meaning, SUMMARY, section="evolution", shown=shown)


def _sampling(key: str, label: str, meaning: str, unit: str = "", shown: FigureFormat = PLAIN) -> Metric:
    """A metric of how sampling and windows affect estimated entropies; the case gives the sampling rate, α or
    the window."""
    return Metric(f"sampling.{key}", label, unit, meaning, SUMMARY, shown=shown)


def _weights(key: str, label: str, meaning: str) -> Metric:
    """A metric of saved weights, by the dotted key of `statistics.json`."""
    return Metric(key, label, "", meaning, SUMMARY, section="weights")


def _score(key: str, label: str, meaning: str, better: Better | None = None) -> Metric:
    """A share that lm-eval computes for one of its tasks."""
    return Metric(key, label, "", meaning, SUMMARY, None, better, shown=FigureFormat("%", 100, decimals=2))


STUDIES = (
    Metric(
        *("time_to_accuracy_s", "time to accuracy", "s", "inf when missed"),
        *(SUMMARY, None, "lower"),
        timed=True,
    ),
    Metric("bytes_ratio", "bytes, BF16 = 1", "", "bytes per step over BF16's", better="lower"),
    Metric(
        "vnmse_std", "±", "", "standard deviation of the vNMSE over repeats", shown=FigureFormat(digits=2)
    ),
    Metric(
        *("vnmse_first_step", "first step's vNMSE", "", "of a row of steps: codecs begin without state"),
        *(SUMMARY, None, "lower"),
    ),
    Metric(
        *("vnmse_by_step", "vNMSE", "", "of each step of a row; the case is the step"),
        *(SUMMARY, None, "lower"),
    ),
    Metric(
        *(
            "wire_bits_by_step",
            "wire bits per coordinate",
            "bit",
            "of each step of a row; the case is the step",
        ),
        *(SUMMARY, None, "lower"),
    ),
    Metric(
        *("codec_s", "codec work", "s", "of the busiest rank in one synchronization"),
        *(SUMMARY, None, "lower"),
        shown=MILLISECONDS,
    ),
    Metric(
        *("codec_ns_per_coordinate", "codec ns", "ns", "codec work per coordinate"),
        *(SUMMARY, None, "lower"),
        shown=SHORT,
    ),
    Metric("bound_vnmse", "rate–distortion bound", "", "the vNMSE that the wire bits allow", SUMMARY),
    Metric(
        *("db_above_bound", "dB above bound", "dB", "the vNMSE over that bound"),
        *(SUMMARY, None, "lower"),
        shown=FigureFormat(decimals=1),
    ),
    Metric(
        *("allreduce_s", "all-reduce", "s", "of the slowest rank in one round"),
        *(SUMMARY, None, "lower"),
        shown=FULL_MILLISECONDS,
    ),
    Metric(
        *("bus_bandwidth", "bus bandwidth", "B/s", "uncompressed bytes over the time, times 2(n − 1)/n"),
        *(SUMMARY, None, "higher"),
        shown=FigureFormat("MB/s", 1e-6, digits=3),
    ),
    Metric(
        "scatter_s",
        "scatter",
        "s",
        "of gradients (parallel=sharded)",
        SUMMARY,
        better="lower",
        shown=FULL_MILLISECONDS,
    ),
    Metric(
        "gather_s",
        "gather",
        "s",
        "of weights (parallel=sharded)",
        SUMMARY,
        better="lower",
        shown=FULL_MILLISECONDS,
    ),
    _predicted("gradients_s", "gradients", "s", "waiting for gradients", "lower"),
    _predicted("weights_s", "weights", "s", "waiting for weights", "lower"),
    _predicted("stages_s", "stages", "s", "waiting for other stages of a pipeline", "lower"),
    _predicted("gradient_comm_s", "gradients travel", "s", "the time in which gradients travel", "lower"),
    _predicted("training_days", "training", "days", "predict.steps steps", "lower", FigureFormat("days")),
    _predicted("tflops", "TFLOP/s", "TFLOP/s", "of one worker", "higher", FigureFormat(decimals=1)),
    _predicted("printed_tflops", "printed", "TFLOP/s", "the paper's TFLOP/s", None, FigureFormat(decimals=1)),
    _predicted(
        "error", "error", "", "of the TFLOP/s, to those printed", None, FigureFormat("%", 100, decimals=1)
    ),
    _predicted(
        "over_uncompressed", "speed-up", "", "step of the uncompressed system over this", "higher", SHORT
    ),
    _predicted("rounds", "rounds", "", "that all workers have completed (task=simulate)", "higher", PLAIN),
    _predicted(
        "t_wait", "T_wait", "", "mean wait in a round over the mean computation in one", "lower", SHORT
    ),
    _predicted(
        "q_ratio_first", "Q_ratio, stage 1", "", "bits over 32 for each value, first stage", "higher", SHORT
    ),
    _predicted("q_ratio", "Q_ratio", "", "bits over 32 for each value, both stages", "higher", SHORT),
    _predicted("least_bits", "least bits", "bit", "of any value in the first stage", None, PLAIN),
    _predicted(
        *(
            "followed_after",
            "followed after",
            "",
            "rounds until Q_ratio has followed a changed rate",
            "lower",
        ),
        PLAIN,
    ),
    Metric("measured_over_modelled", "measured / modelled", "", "all-reduce", SUMMARY, shown=SHORT),
    Metric("to_bf16", "to BF16", "", "all-reduce, over BF16's", better="lower", shown=SHORT),
    Metric("by_bits", "by bits", "", "wire bits, over BF16's", better="lower", shown=SHORT),
    Metric("over_bits", "to BF16 over by bits", "", "what bits do not explain", better="lower", shown=SHORT),
    Metric(
        "to_exact",
        "to exact",
        "",
        "sharded round, over that of float32 and exact weights",
        better="lower",
        shown=SHORT,
    ),
    Metric(
        "by_bytes",
        "by bytes",
        "",
        "bytes, over those of float32 and exact weights",
        better="lower",
        shown=SHORT,
    ),
    Metric(
        "over_bytes", "to exact over by bytes", "", "what bytes do not explain", better="lower", shown=SHORT
    ),
    Metric("saved_s", "saved", "s", "BF16's all-reduce less this", better="higher", shown=FULL_MILLISECONDS),
    Metric(
        *("cpu_step_s", "CPU time of a step", "s", "of all workers together"),
        *(SUMMARY, None, "lower"),
        shown=FigureFormat("ms", 1e3, decimals=2),
    ),
    Metric("to_bare", "bare = 1", "", "over the bare loop's", better="lower", shown=FigureFormat(decimals=3)),
    _score("acc", "accuracy", "share of documents whose right ending is the likeliest", "higher"),
    _score("acc_norm", "accuracy by length", "as acc, with likelihoods per character", "higher"),
    _score("acc_stderr", "accuracy ±", "standard error of acc over the documents"),
    _score("acc_norm_stderr", "accuracy by length ±", "standard error of acc_norm over the documents"),
    _score("cut_requests", "cut requests", "share of requests cut to the context", "lower"),
    Metric("documents", "documents", "", "that were scored", SUMMARY),
    _speed("ns_per_coordinate", "ns/coordinate", "ns", "shortest time", "lower"),
    _speed("values_gb_per_s", "GB/s of values", "GB/s", "of the bucket's coordinates", "higher"),
    _speed("bytes_per_coordinate", "bytes/coordinate", "B", "of memory, read and written", None),
    _speed(
        *("share_of_copy", "of a copy's bandwidth", "", "bytes read and written", "higher"),
        shown=FigureFormat("%", 100, decimals=0),
    ),
    _speed("speedup", "× default", "", "over the definition on one thread", "higher"),
    _gradients("workers.energy_of_mean", "energy of the mean / mean energy", "", "of the workers' gradients"),
    *(
        Metric(
            f"norms.below_{share}th",
            f"norms below 1/{share}",
            "",
            f"share of groups of that size whose norm is below a {share}th of the median",
            SUMMARY,
            shown=FULL_PERCENT,
        )
        for share in (10, 100)
    ),
    _gradients(
        *("workers.top_1_percent", "energy in the top 1 % of super-groups", "", "of the workers' energy"),
        FULL_PERCENT,
    ),
    _gradients(
        *("workers.top_10_percent", "energy in the top 10 % of super-groups", "", "of the workers' energy"),
        FULL_PERCENT,
    ),
    _gradients("workers.zeros", "exact zeros", "", "share of coordinates", FULL_PERCENT),
    _gradients("workers.largest", "largest |x|", "", "of all workers"),
    _gradients("workers.kurtosis", "kurtosis (Gaussian: 3)", "", "of all workers' coordinates"),
    _gradients("smoothing.before.kurtosis", "kurtosis, whole groups", "", "of all workers' groups of 128"),
    _gradients("smoothing.after.kurtosis", "after a Hadamard transform", "", "of the same, transformed"),
    _gradients(
        *("smoothing.before.median_kurtosis", "kurtosis within groups", ""),
        "the median over all workers' groups of 128",
    ),
    _gradients(
        *("smoothing.after.median_kurtosis", "after a Hadamard transform", "", "of the same, transformed")
    ),
    _gradients("entropy.nats", "differential entropy", "nats", "of each worker's gradient, averaged", NATS),
    _gradients(
        *("entropy.gaussian_nats", "differential entropy of a Gaussian of that variance", "nats"),
        *("of each worker's gradient, averaged", NATS),
    ),
    _gradients(
        *("entropy.matrix_nats", "differential entropy of matrices, weighted mean", "nats"),
        *("of each worker's gradient, averaged", NATS),
    ),
    _evolution(
        *("entropy_change", "change of entropy", "mean over matrices, last saved step less the first"),
        *("nats", NATS),
    ),
    _evolution("sigma_ratio", "σ, last over first", "of a layer's gradients, geometric mean over layers"),
    _evolution("correlation_first", "mean |r|, first step", "between a matrix's rows or columns"),
    _evolution("correlation_last", "mean |r|, last step", "between a matrix's rows or columns"),
    _evolution("correlation_random", "mean |r|, random numbers", "in matrices of these shapes"),
    _evolution(
        "best_over_theory", "best error over σ·g(r)", "of singular values, mean over ranks and matrices"
    ),
    _evolution("power_over_theory", "PowerSGD's error over σ·g(r)", "mean over ranks and matrices"),
    _evolution(
        "largest_over_theory", "largest", "PowerSGD's error over σ·g(r), of any rank, matrix and step"
    ),
    _evolution(
        *("random_over_theory", "that of random numbers, mean"),
        "PowerSGD's error over σ·g(r), in matrices of these shapes",
    ),
    _evolution("error_change", "error, last over first", "of singular values, geometric mean over ranks"),
    _evolution("layer_agreement", "layers' agreement", "correlation of their log errors over steps"),
    _sampling(
        "rate_correlation",
        "correlation",
        "of entropies over steps, from that share of coordinates and from all",
    ),
    _sampling(
        "rate_error", "mean |ΔH|", "entropy from that share of coordinates less that from all", "nats", NATS
    ),
    _sampling(
        *("relative_change", "relative change of entropy", "of a window's mean, steps sampled; largest"),
        shown=FULL_PERCENT,
    ),
    _sampling(
        *("mean_relative_change", "mean relative change", "of a window's mean, steps sampled"),
        shown=FULL_PERCENT,
    ),
    _sampling("window_correlation", "CC", "of entropy over steps and its means over windows"),
    _sampling("window_mse", "MSE", "of entropy's means over windows against single steps", "nats²"),
    _weights("weights.root_mean_square", "weights: root mean square", "of the model's before a step"),
    _weights("weights.error", "weights: error", "of int4 in groups of 2048, over their norm"),
    _weights("differences.root_mean_square", "differences: root mean square", "of main less model weights"),
    _weights("differences.norm_ratio", "differences over weights", "their norms"),
    _weights("differences.error", "differences: error", "of int4 in groups of 2048, over their norm"),
    _weights("differences.over_weights", "differences: error over weights", "over the weights' norm"),
)
