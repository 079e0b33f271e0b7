"""The work of a codec's mechanism is a figure: of every step, of the run, and in comparisons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codec_rounds import Cluster, layout_of
from tiny import TINY_MODEL

from gradwire.codecs.aqgb.codec import FULL, Figures
from gradwire.codecs.edgc.rank_control import Control, RankControl, RankPlan
from gradwire.codecs.interface import Codec
from gradwire.codecs.registry import codec_classes
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.runs import load_run
from gradwire.harness.report.compare import compare
from gradwire.harness.report.frame import load_results
from gradwire.harness.tasks import train
from gradwire.harness.timing.measure.metrics import METRICS
from gradwire.harness.timing.measure.training_metrics import ACTIVITY, ACTIVITY_PREFIX

NAMES = {metric.key.removeprefix(ACTIVITY_PREFIX) for metric in ACTIVITY}

CONTROL = Control(0, 64, 32, 2, 16, 1.0, 0.0, 16, 1.0)


def activity(codec: Codec) -> dict[str, float]:
    found = dict(codec.activity())
    assert found.keys() <= NAMES
    return found


def test_its_metrics_are_in_records_and_in_a_table_of_their_own() -> None:
    assert all(METRICS[metric.key].section == "activity" for metric in ACTIVITY)
    assert all(metric.meaning and "summary" in metric.places for metric in ACTIVITY)


def test_powersgd_says_what_it_compresses_and_to_which_rank() -> None:
    layout = layout_of({"weight": (16, 8), "bias": (8,)})
    ranks = Cluster(2, "ring", "powersgd", rank=2, min_compression_rate=1.0)
    assert activity(ranks.codecs[0]) == {}
    xs = [torch.randn(layout.numel) for _ in range(2)]
    ranks.one(xs, layout)
    assert activity(ranks.codecs[0]) == {"compressed": 128 / 136, "rank": 2.0}
    later = Cluster(2, "ring", "powersgd", rank=2, min_compression_rate=1.0, start_step=5)
    later.one(xs, layout)
    assert activity(later.codecs[0]) == {"compressed": 0.0}, "it is idle before its first step"


def test_edgc_says_which_ranks_are_held_at_a_bound() -> None:
    control = RankControl(4, 8, 0, "own", "activation")
    plan = RankPlan(compressing=1, max_rank=16, controls=(CONTROL, replace(CONTROL, stage=1, rank=9)))
    assert control.activity(plan) == {"at_bound": 0.5}
    assert control.activity(replace(plan, controls=(replace(CONTROL, rank=4),))) == {"at_bound": 1.0}
    assert control.activity(replace(plan, controls=(replace(CONTROL, rank=9),))) == {"at_bound": 0.0}
    assert control.activity(replace(plan, compressing=0)) == {}


def test_aqgb_says_how_much_goes_at_the_least_and_at_full_bits() -> None:
    assert Figures().activity() == {}
    assert Figures(100, 100 * FULL // 2, 25).activity() == {"ratio": 0.5, "at_bound": 0.25}


def test_omnireduce_says_which_blocks_it_sends() -> None:
    ranks = Cluster(2, "ring", "omnireduce", bits=8.0, block=16)
    ranks.one([torch.randn(1024) for _ in range(2)])
    (share,) = activity(ranks.codecs[0]).values()
    assert 0.2 < share < 0.8


def test_excluded_coordinates_are_counted() -> None:
    layout = layout_of({"weight": (16, 8), "bias": (8,)})
    ranks = Cluster(2, "ring", "powersgd", rank=2, min_compression_rate=1.0, exclude=["bias"])
    ranks.one([torch.randn(layout.numel) for _ in range(2)], layout)
    found = activity(ranks.codecs[0])
    assert found == {"compressed": 1.0, "rank": 2.0, "excluded": 8 / 136}


@pytest.mark.parametrize("name", sorted(codec_classes()))
def test_a_codec_that_has_done_nothing_says_so(name: str) -> None:
    assert activity(codec_classes()[name]()) == {}


def test_rows_summaries_tables_and_the_frame_have_it(tmp_path: Path) -> None:
    folders = []
    for codec in ("bf16", "powersgd"):
        settings = [f"codec={codec}", "cluster=virtual", "cluster.workers=2", "train.steps=4"]
        settings += ["codec.start_step=2", "codec.rank=2"] if codec == "powersgd" else []
        folders.append(tmp_path / codec)
        config = validate_any(compose([*TINY_MODEL, *settings, f"hydra.run.dir={folders[-1]}"]))
        assert train.run(config, folders[-1]) == 0
    run = load_run(folders[1])
    shares = [row["activity/compressed"] for row in run.steps]
    assert shares[:2] == [0.0, 0.0] and 0.1 < shares[2] == shares[3] < 1
    assert run.done.values()["activity/compressed"] == pytest.approx(sum(shares) / 4)
    assert run.steps[2]["activity/rank"] == 2.0 and "activity/rank" not in run.steps[0]
    assert "activity/ratio" not in run.done.values() and "codec/activity/rank" not in run.steps[2]
    summary = json.loads((folders[0] / "summary.json").read_text())
    assert not [key for key in summary if key.startswith(ACTIVITY_PREFIX)]
    frame = load_results(tmp_path)
    assert set(frame[frame.metric.str.startswith(ACTIVITY_PREFIX)].metric) == {
        "activity/compressed",
        "activity/rank",
    }
    compare(folders, tmp_path / "out", axes=["codec"])
    page = (tmp_path / "out" / "table.md").read_text()
    assert "What the codecs' mechanisms did" in page
    assert "activity/compressed" in (tmp_path / "out" / "table.csv").read_text().splitlines()[0]
    assert "activity/rank" in (tmp_path / "out" / "table.json").read_text()
