"""Figures of verdicts, captions and models in words, from records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sweep_records import cell, record

from gradwire.harness.report.captions import caption, legend_key
from gradwire.harness.report.chances import at_chance, level
from gradwire.harness.report.claims.effect_words import effect_in_words
from gradwire.harness.report.claims.effects import Effects, above, at_least, at_most, near, spared
from gradwire.harness.report.claims.evidence import Evidence
from gradwire.harness.report.frame import Value
from gradwire.harness.report.in_words import in_words
from gradwire.harness.report.names import name_of, rate
from gradwire.harness.report.parameters import models_in_words, parameters, parameters_of_each
from gradwire.harness.report.reference import COLUMNS, Reference
from gradwire.harness.report.sweep_record import SweepRecord


def written(effects: Effects) -> str:
    """The words for one effect, with a tolerance of a fifth."""
    (effect,) = effects
    return effect_in_words(effect, 0.2)


def evidence(found: SweepRecord, tmp_path: Any) -> Evidence:
    return Evidence({found.name: found}, Reference(tmp_path))


def test_a_time_to_accuracy_names_the_target_the_codecs_and_the_unit(tmp_path: Any) -> None:
    rows, curves = [], {}
    for codec, seconds in (("aqgb", 52.2), ("fp32", 68.8), ("bf16", 43.9)):
        for seed in (0, 1, 2):
            rows.append(({"codec": codec}, seed, {"final_metric": 10.0}))
            curves[f"codec={codec} seed={seed}"] = [(1, 1.0, 99.0), (2, seconds + seed, 10.0)]
    found = evidence(record(("codec",), rows, curves=curves), tmp_path)
    found.tta(1.1, codec="aqgb")
    found.tta(1.1, codec="fp32")
    found.tta(1.1, codec="aqgb")
    assert in_words(found.used) == [
        "training time to 1.1 × BF16's perplexity: AQGB 53.2 s (52.2–54.2), no compression 69.8 s (68.8–70.8)"
    ]


def test_effects_have_the_unit_of_the_figures_that_they_are_of(tmp_path: Any) -> None:
    rows = [
        ({"codec": codec}, seed, {"step_time_s": seconds, "utilization": seconds, "vnmse": seconds})
        for codec, seconds in (("dynamiq", 0.02), ("mxfp8", 0.05))
        for seed in (0, 1, 2)
    ]
    found = evidence(record(("codec",), rows), tmp_path)
    saved = found.step_time_s(codec="mxfp8") - found.step_time_s(codec="dynamiq")
    used = found.utilization(codec="mxfp8")
    assert written(at_least(saved, 0.01, null=0.0)) == "30 ms where at least 10 ms is claimed, spread 0 ms"
    assert written(at_least(used, 0.04, null=0.0)) == "5 % where at least 4 % is claimed, spread 0 %"
    assert written(near(used, 0.06, null=0.01)) == (
        "5 % where 6 ± 1 % is claimed (1 % without the effect), spread 0 points"
    )
    assert written(at_most(used, 0.04, null=0.06)) == (
        "5 % where at most 4 % is claimed (6 % without the effect), spread 0 points"
    )
    share = saved / found.step_time_s(codec="mxfp8")
    mixed = found.step_time_s(codec="mxfp8") - found.vnmse(codec="dynamiq")
    for figure in (share, mixed, 1 - share):
        assert figure.shown.unit == "" and figure.shown.factor == 1.0
    assert (2 * saved / 4).shown == saved.shown


def test_a_printed_figure_has_its_place_and_its_unit(tmp_path: Any) -> None:
    (tmp_path / "paper").mkdir()
    lines = (
        "paper,Table III,GPT,,EDGC,,training_time,5.77,day,",
        "paper,Table III,GPT,,EDGC,,perplexity,17.9,,",
    )
    (tmp_path / "paper" / "table3.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    found = evidence(record(("codec",), [({"codec": "edgc"}, 0, {})]), tmp_path)
    assert found.paper("paper/table3", metric="training_time") == 5.77
    found.paper("paper/table3", metric="perplexity")
    assert in_words(found.used) == [
        "printed: Table III, training time: 5.77 days; Table III, perplexity: 17.9"
    ]


def test_what_figures_share_stands_once_and_settings_apart(tmp_path: Any) -> None:
    rows: list[Any] = []
    for model in ("gemma1b", "bert_large"):
        for codec, error in (("dynamiq", 0.01), ("mxfp8", 0.02)):
            rows.append(
                ({"model": model, "codec": codec, "codec.bits": 5}, 0, {"vnmse": error, "step_time_s": 0.02})
            )
    found = evidence(record(("model", "codec", "codec.bits"), rows), tmp_path)
    for model in found.each(model=("gemma1b", "bert_large")):
        model.vnmse(codec="dynamiq", bits=5)
        model.vnmse(codec="mxfp8", bits=5)
    found.step_time_s(codec="mxfp8", model="gemma1b")
    assert in_words(found.used) == [
        "error (vNMSE) (5 bits): "
        "Gemma 1B: DynamiQ 0.0100, MXFP8 0.0200; BERT-large: DynamiQ 0.0100, MXFP8 0.0200",
        "time of a step (Gemma 1B): MXFP8 20 ms",
    ]


def scores(values: dict[str, list[float]]) -> SweepRecord:
    """Accuracies of codecs by evaluation, on 256 questions of four answers."""
    rows = [
        ({"codec": codec, "dataset.name": "mmlu"}, 0, {"final_metric": own[-1]})
        for codec, own in values.items()
    ]
    found = record(("codec", "dataset.name"), rows, metric="accuracy")
    more = [
        Value(each.label, each.task, metric, figure, seed=0, step=step)
        for each in found.cells
        for step, value in enumerate(values[each.axes["codec"]])
        for metric, figure in (("accuracy", value), ("train_time_s", float(step)))
    ]
    settings = {"train": found.settings["train"] | {"eval.max_sequences": 256}}
    object.__setattr__(found, "values", (*found.values, *more))
    object.__setattr__(found, "settings", settings)
    return found


def test_curves_at_chance_are_told_from_one_that_learns(tmp_path: Any) -> None:
    guessing = scores({"bf16": [0.25, 0.262], "mxfp8": [0.238, 0.262]})
    learning = scores({"bf16": [0.25, 0.262], "mxfp8": [0.238, 0.40]})
    assert at_chance(guessing, guessing.cells) and not at_chance(learning, learning.cells)
    assert level(guessing, guessing.cells[0]) == 0.25
    found = evidence(guessing, tmp_path)
    found.final_metric(codec="bf16")
    found.tta(0.99, codec="mxfp8")
    assert in_words(found.used) == [
        "final accuracy (scores at chance, guesses 25 %): BF16 26.2 %",
        "training time to 0.99 × BF16's accuracy (scores at chance): MXFP8 1 s",
    ]
    assert level(guessing, cell({"codec": "bf16", "dataset.name": "mmlu"})) is None, "judged by perplexity"


def test_accuracies_are_in_percent_and_their_differences_in_points(tmp_path: Any) -> None:
    ends = {"bf16": (0.841, 0.828, 0.851), "dynamiq": (0.844, 0.835, 0.852), "mxfp4": (0.80, 0.79, 0.81)}
    rows = [
        ({"codec": codec}, seed, {"final_metric": score})
        for codec, scored in ends.items()
        for seed, score in enumerate(scored)
    ]
    found = evidence(record(("codec",), rows, metric="accuracy"), tmp_path)
    kept, base, harmed = (found.final_metric(codec=codec) for codec in ("dynamiq", "bf16", "mxfp4"))
    assert in_words(found.used) == [
        "final accuracy: DynamiQ 84.4 % (83.5–85.2), BF16 84.1 % (82.8–85.1), MXFP4 80 % (79–81)"
    ]
    assert written(spared(kept, base, harmed)) == (
        "-0.3667 points of a harm of 4 points (0.8 points allowed), spread 0.3055 points"
    ), "by hand: the changes are 0.3, 0.7 and 0.1 points, the harms 4.1, 3.8 and 4.1"
    assert written(near(kept - base, 0.0175, null=0.0)).startswith(
        "0.3667 points where 1.75 ± 0.35 points is claimed"
    )
    assert written(above(kept, base)).startswith("a ratio of 1.004")
    plain = evidence(record(("codec",), rows), tmp_path)
    assert plain.final_metric(codec="bf16").shown.unit == "", "a perplexity is no share"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "metric-end-perplexity-simulated-gemma1b",
            "by time, near the end: perplexity, simulated clock, Gemma 1B",
        ),
        ("tta", "time to the targets"),
        (
            "widths-llama1b-mmlu-step-140-ring-of-8",
            "squared norms and the widths chosen: LLaMA 1B, MMLU, step 140, ring of 8",
        ),
        ("bandwidth", "bytes sent over time in two steps; shaded: computation; dashed: the rate of the link"),
        (
            "schemes-2",
            "rounds, share of links used, waiting over computation (T_wait) and ROW of each scheme: part 2",
        ),
        ("something-else", "something else"),
    ],
)
def test_captions_are_words(name: str, words: str) -> None:
    assert caption(name) == words


def test_an_item_says_what_its_plots_show_where_their_name_does_not() -> None:
    assert caption("widths-gemma1b-step-20", "errors by width") == "errors by width: Gemma 1B, step 20"
    codecs = ["fp32", "aqgb", "optimus_cc", "fp32", "mine:Codec"]
    assert legend_key(codecs) == "in legends fp32 is no compression"
    assert legend_key(["edgc", "topk"]) == ""


def test_names_are_the_fields_own() -> None:
    assert name_of("gradients", "training:step140") == "gradients of step 140"
    assert name_of("gradients", "training:step140-149") == "gradients of steps 140–149"
    assert name_of("gradients", "training:weights20") == "weights of step 20"
    assert name_of("case", "edgc.bits.4 float32 16777216 cpu 1") == (
        "entropy of every fourth coordinate, 16.8 million values in float32, 1 thread"
    )
    assert name_of("case", "2 from 50 s") == "rate × 2 from 50 s"
    assert name_of("case", "arc_easy") == "arc_easy"
    assert [name_of("codec", "fp32"), name_of("codec.bits", 5), name_of("model", "gpt_2_5b")] == [
        "no compression",
        "5 bits",
        "GPT-2.5B",
    ]
    assert rate(100) == "100 Mbit/s" and rate(2500) == "2.5 Gbit/s"
    assert name_of("codec", "mine:Codec") == "mine:Codec"


def sent(parameters: int, times: float, *codecs: str, topology: str = "ring") -> SweepRecord:
    """Runs of four ranks and ten steps, in which each rank sends `times` the gradient of 16 bits a step."""
    per_rank = parameters * 2 * times
    figures = {
        "bytes_sent": per_rank * 4 * 10,
        "bytes_per_step_per_rank": per_rank,
        "wire_bits_per_coordinate": 16.0,
    }
    rows = [({"codec": codec, "topology": topology}, 0, figures) for codec in codecs]
    found = record(("codec", "topology"), rows)
    return replace(found, settings={"train": {"model.name": "llama1b", "train.steps": 10}})


@pytest.mark.parametrize(("topology", "times"), [("ring", 2 * 3 / 4), ("broadcast", 3)])
def test_parameters_follow_from_the_bytes_of_uncompressed_gradients(topology: str, times: float) -> None:
    found = sent(131_392, times, "bf16", "mxfp8", topology=topology)
    counts = parameters([found])
    assert counts == {("small", "llama1b"): 131_392}
    assert models_in_words(found, found.cells, counts) == "LLaMA 1B, chat (131k parameters)"
    assert models_in_words(found, found.cells, {}) == ""
    piped = {"parallel.name": "pipeline", "model.tie_embeddings": True}
    sizes = {"model.vocab_size": 512, "model.hidden_size": 64}
    found = replace(found, settings={"train": found.settings["train"] | piped | sizes})
    assert models_in_words(found, found.cells, counts) == (
        "LLaMA 1B, chat (131k parameters; 164k with the copy of the embedding that a pipeline's last stage "
        "has)"
    )


def test_a_record_without_uncompressed_gradients_has_the_count_of_the_others() -> None:
    small, other = sent(131_392, 1.5, "bf16"), sent(131_392, 1.5, "mxfp8")
    wide = sent(2_500_000, 1.5, "bf16")
    found = {("small", "llama1b"): 131_392}
    assert parameters_of_each([small, other]) == [found, found]
    assert parameters_of_each([small, wide, other]) == [found, {("small", "llama1b"): 2_500_000}, {}]
