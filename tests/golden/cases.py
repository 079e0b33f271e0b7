"""The golden cases: small runs whose every figure is on record, bit for bit.

Overrides are spelled as in this working tree. `RENAMED` has the older spelling of what has changed
its name since, for commits that do not know the new one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny import TINY_MODEL

from gradwire.codecs.registry import OWN

SHORT = (
    *TINY_MODEL,
    "train.steps=5",
    "train.log_every=2",
    "eval.every=3",
    "eval.max_sequences=8",
    "measure.vnmse_every=1",
    "cluster.workers=3",
)
"""The overrides that all cases begin with; a case's own come later and win."""

RENAMED = {
    "codec=backend": "codec=native",
    "network.background_jobs": "network.rivals",
    "network.background_mb": "network.rival_mb",
    "overlap.segments": "overlap.pieces",
    "plots=false": "replay.plots=false",
}
"""The beginning of an override, and how older commits spell it."""


@dataclass(frozen=True)
class Case:
    """A run, `real` on processes, else in a virtual cluster.

    `real_only`: no virtual cluster gives the same. `stops`: the run is asked to stop after so many questions
    and resumes from its checkpoint, which must change nothing; as a command it is not stopped. `timed`: its
    clock is reproducible, too. `then`: a task that follows, whose figures are recorded with the run's;
    `{run}` is the run's directory.
    """

    overrides: tuple[str, ...]
    real: bool = False
    real_only: bool = False
    stops: tuple[int, ...] = ()
    timed: bool = False
    then: tuple[str, ...] = ()


def virtual(
    *overrides: str, stops: tuple[int, ...] = (), timed: bool = False, then: tuple[str, ...] = ()
) -> Case:
    return Case(overrides, stops=stops, timed=timed, then=then)


def real(workers: int, *overrides: str, real_only: bool = False) -> Case:
    return Case((*overrides, f"cluster.workers={workers}"), real=True, real_only=real_only)


GIVEN_TIMES = ("network.compute_s=0.25", "network.codec_times=none")
"""With these settings a simulated clock measures nothing."""

CASES: dict[str, Case] = {
    "fp32 ring": virtual("codec=fp32"),
    "fp32 dropout": virtual("codec=fp32", "model.dropout=0.1", "seed=7"),
    "bf16 butterfly": virtual("codec=bf16", "topology=butterfly", "cluster.workers=4"),
    "bf16 paced real": real(2, "codec=bf16", "network=paced", "network.rate_mbit=500"),
    "backend real": real(2, "codec=backend", real_only=True),
    "dynamiq ring": virtual("codec=dynamiq"),
    "dynamiq butterfly real": real(4, "codec=dynamiq", "topology=butterfly", "measure.check_hashes=true"),
    "dynamiq two_level": virtual(
        "codec=dynamiq", "topology=two_level", "cluster.workers=4", "cluster.ranks_per_node=2"
    ),
    "dynamiq broadcast": virtual("codec=dynamiq", "codec.bits=3", "topology=broadcast"),
    "dynamiq feedback": virtual("codec=dynamiq", "codec.ef=true", "topology=broadcast"),
    "dynamiq pieces real": real(2, "codec=dynamiq", "overlap.segments=3"),
    "dynamiq accumulated": virtual("codec=dynamiq", "train.accumulation=2", "model.dropout=0.1"),
    "dynamiq independent rounding": virtual("codec=dynamiq", "codec.rounding=independent"),
    "dynamiq llama": virtual("codec=dynamiq", "model=llama1b"),
    "dynamiq gemma butterfly": virtual("codec=dynamiq", "model=gemma1b", "topology=butterfly"),
    "dynamiq bert": virtual("codec=dynamiq", "model=tinybert"),
    "dynamiq choice": virtual("codec=dynamiq", "model=llama1b_mmlu", "train.micro_batch=3"),
    "dynamiq choice butterfly real": real(2, "codec=dynamiq", "model=llama1b_mmlu", "topology=butterfly"),
    "bf16 classification resumed": virtual(
        *("codec=bf16", "model=tinybert_glue", "train.checkpoint_every=2", "train.log_every=1"), stops=(2, 2)
    ),
    "mxfp8 classification real": real(2, "codec=mxfp8", "model=tinybert_glue", "train.accumulation=2"),
    "dynamiq exclude": virtual("codec=dynamiq", "codec.exclude=[*wte*]"),
    "dynamiq resumed": virtual(
        *("codec=dynamiq", "train.checkpoint_every=2", "train.log_every=1"), stops=(2, 2)
    ),
    "dynamiq_plus butterfly": virtual("codec=dynamiq_plus", "topology=butterfly", "cluster.workers=5"),
    "dynamiq_plus feedback real": real(2, "codec=dynamiq_plus", "codec.ef=true", "topology=broadcast"),
    "uniform ring": virtual("codec=uniform"),
    "mxfp8 resumed": virtual(
        *("codec=mxfp8", "codec.gamma=0.5", "train.checkpoint_every=2", "train.log_every=1"), stops=(3,)
    ),
    "mxfp6 llama": virtual("codec=mxfp6", "model=llama1b"),
    "mxfp4 feedback": virtual("codec=mxfp4", "codec.ef=true", "cluster.workers=2"),
    "thc butterfly": virtual("codec=thc", "topology=butterfly"),
    "thc feedback": virtual("codec=thc", "codec.ef=true", "cluster.workers=2"),
    "omnireduce feedback": virtual("codec=omnireduce", "codec.ef=true", "topology=broadcast"),
    "powersgd real": real(2, "codec=powersgd", "codec.rank=2"),
    "edgc": virtual(
        *("codec=edgc", "train.steps=16", "eval.every=8", "codec.max_rank=4", "codec.min_rank=1"),
        *("codec.window=4", "codec.alpha=0.5", "codec.step_limit=1", "codec.estimator=gaussian"),
    ),
    "edgc pipeline": virtual(
        *("codec=edgc", "train.steps=16", "eval.every=8", "codec.max_rank=null", "codec.window=4"),
        *("codec.alpha=0.5", "parallel=pipeline", "parallel.stages=2", "model.num_layers=2"),
        *("cluster.workers=4", "network=simulated", *GIVEN_TIMES),
        stops=(9,),
        timed=True,
    ),
    "aqgb": virtual(
        *("codec=aqgb", "parallel=blocks", "parallel.num_blocks=3", "parallel.bucket_cap_mb=25"),
        *("topology=broadcast", "train.steps=12", "train.log_every=1", "eval.every=6", "codec.margin_s=0"),
        *("network=simulated", "network.rate_mbit=5", *GIVEN_TIMES),
        stops=(9,),
        timed=True,
    ),
    "powersgd accumulated": virtual("codec=powersgd", "train.accumulation=2"),
    "optimus_cc pipeline": virtual(
        *("codec=optimus_cc", "parallel=pipeline", "parallel.stages=2", "model.num_layers=2"),
        "cluster.workers=4",
    ),
    "dynamiq pipeline resumed": virtual(
        *("codec=dynamiq", "parallel=pipeline", "parallel.stages=2", "parallel.schedule=gpipe"),
        *("cluster.workers=4", "model=llama1b", "model.num_layers=2", "train.accumulation=2"),
        *("network=simulated", "network.rate_mbit=5", *GIVEN_TIMES),
        *("train.checkpoint_every=2", "train.log_every=1"),
        stops=(2,),
        timed=True,
    ),
    "qsgd broadcast": virtual("codec=qsgd", "topology=broadcast"),
    "tfp ring": virtual("codec=tfp", "cluster.workers=2"),
    "terngrad broadcast": virtual("codec=terngrad", "topology=broadcast"),
    "onebit feedback": virtual("codec=onebit", "codec.ef=true", "topology=broadcast"),
    "topk feedback": virtual("codec=topk", "codec.ef=true", "codec.fraction=0.1", "codec.exclude=[*ln*]"),
    "randomk ring": virtual("codec=randomk"),
    "linear feedback real": real(2, "codec=linear", "codec.hadamard=fused", "codec.ef=true"),
    "all_to_all": virtual("codec=all_to_all", "cluster.workers=4", "cluster.ranks_per_node=2"),
    "sharded sdp4bit": virtual(
        *("experiment=sdp4bit", "cluster.workers=4", "cluster.ranks_per_node=2"),
    ),
    "sharded qw real": real(
        *(3, "parallel=sharded", "parallel.weights=qw", "parallel.weight_group=128", "codec=dynamiq"),
    ),
    "dynamiq replayed": virtual(
        *("codec=fp32", "measure.save_gradients_at=[1]"),
        then=(
            *("task=replay", "gradients={run}/gradients/step1.safetensors", "plots=false"),
            *("codec=dynamiq", "topology=butterfly", "replay.repeats=2", "replay.rounds=3"),
        ),
    ),
    "dynamiq retimed": virtual(
        *("codec=dynamiq", "network=simulated", "network.rate_mbit=5", *GIVEN_TIMES),
        *("network.jitter=0.2", "network.background_jobs=1", "network.background_mb=0.05"),
        timed=True,
        then=("task=retime", "run={run}", "network.rate_mbit=1", "network.latency_s=0.01", *GIVEN_TIMES),
    ),
}
"""Cases of every topology and family of models, and of steps with more than one pass or message."""

_NAMED = {override for case in CASES.values() for override in case.overrides}
CASES |= {f"{name} ring": virtual(f"codec={name}") for name in OWN if f"codec={name}" not in _NAMED}
"""All cases: every codec of the package is added at its defaults where no case above names it."""
