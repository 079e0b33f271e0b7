"""Compares runs of another commit and of this working tree bit for bit: losses, errors, bytes, weights.

`python tests/compare_commits.py --base <commit>` checks that commit out into a temporary folder, runs every
case there and here with this Python and its compiled kernels, and prints a line for each; it ends with code 1
if a case differs or fails. `--only dynamiq` chooses the cases whose name holds the word. Both commits must
want the same kernels: csrc/ is not compiled again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recorded import outcome
from tiny import TINY_MODEL

ROOT = Path(__file__).resolve().parent.parent

SHORT = (
    *TINY_MODEL,
    "train.steps=6",
    "train.log_every=3",
    "eval.every=3",
    "eval.max_sequences=8",
    "measure.vnmse_every=2",
    "cluster.workers=3",
)

CASES: dict[str, tuple[str, ...]] = {
    "fp32 ring": ("codec=fp32",),
    "bf16 butterfly real": ("codec=bf16", "topology=butterfly", "cluster=local", "cluster.workers=2"),
    "native real": ("codec=native", "cluster=local", "cluster.workers=2"),
    "dynamiq ring": ("codec=dynamiq",),
    "dynamiq butterfly real": ("codec=dynamiq", "topology=butterfly", "cluster=local", "cluster.workers=4"),
    "dynamiq ring real, checked": ("codec=dynamiq", "cluster=local", "measure.check_hashes=true"),
    "dynamiq broadcast": ("codec=dynamiq", "codec.bits=3", "topology=broadcast"),
    "dynamiq feedback": ("codec=dynamiq", "codec.ef=true", "topology=broadcast"),
    "dynamiq pieces real": ("codec=dynamiq", "overlap.pieces=3", "cluster=local", "cluster.workers=2"),
    "dynamiq accumulated": ("codec=dynamiq", "train.accumulation=2", "model.dropout=0.1"),
    "dynamiq llama": ("codec=dynamiq", "model=llama1b"),
    "dynamiq bert": ("codec=dynamiq", "model=tinybert"),
    "dynamiq bf16 exclude": ("codec=dynamiq", "codec.exclude=[*wte*]"),
    "dynamiq_plus butterfly": ("codec=dynamiq_plus", "topology=butterfly", "cluster.workers=5"),
    "dynamiq_plus feedback real": (
        *("codec=dynamiq_plus", "codec.ef=true", "topology=broadcast"),
        *("cluster=local", "cluster.workers=2"),
    ),
    "uniform ring": ("codec=uniform",),
    "mxfp8 ring": ("codec=mxfp8",),
    "mxfp6 real": ("codec=mxfp6", "cluster=local", "cluster.workers=2"),
    "mxfp4 feedback": ("codec=mxfp4", "codec.ef=true", "cluster.workers=2"),
    "thc butterfly": ("codec=thc", "topology=butterfly"),
    "thc feedback real": ("codec=thc", "codec.ef=true", "cluster=local", "cluster.workers=2"),
    "omnireduce ring": ("codec=omnireduce",),
    "powersgd ring": ("codec=powersgd", "codec.rank=2"),
    "powersgd real": ("codec=powersgd", "codec.rank=2", "cluster=local", "cluster.workers=2"),
    "qsgd broadcast": ("codec=qsgd", "topology=broadcast"),
    "tfp ring": ("codec=tfp", "cluster.workers=2"),
    "terngrad feedback": ("codec=terngrad", "topology=broadcast"),
    "onebit feedback": ("codec=onebit", "codec.ef=true", "topology=broadcast"),
    "topk feedback real": ("codec=topk", "codec.ef=true", "codec.fraction=0.1", "cluster=local"),
    "randomk ring": ("codec=randomk", "codec.fraction=0.1"),
    "simulated network": ("codec=dynamiq", "network=simulated", "network.compute_s=0.1"),
    "paced real": ("codec=bf16", "network=paced", "network.rate_mbit=500", "cluster=local"),
}
"""Overrides by name, beside SHORT; virtual unless they say otherwise."""

REDIRECT = """
import os, sys
sys.meta_path[:] = [f for f in sys.meta_path if "scikit" not in type(f).__name__.lower()]
sys.path.insert(0, os.environ["GRADWIRE_SOURCES"])
"""
"""What every Python of a run does first: forget an editable install, import the sources of one commit."""


def sources(checkout: Path, folder: Path) -> dict[str, str]:
    """The environment in which `gradwire` is `checkout`'s, with `folder` for what that takes.

    The checkout itself must not be on the path: its folder `codecs` would hide Python's own module.
    """
    folder.mkdir()
    (folder / "gradwire").symlink_to(checkout / "gradwire")
    (folder / "sitecustomize.py").write_text(REDIRECT)
    return {
        "PYTHONPATH": str(folder),
        "GRADWIRE_SOURCES": str(folder),
        "GRADWIRE_LIBRARIES": str(libraries()),
        "OMP_NUM_THREADS": "1",
    }


def libraries() -> Path:
    """The folder of the compiled kernels that this Python uses."""
    from gradwire.codecs.native.library import library

    found = library("cpu")
    if found is None:
        raise SystemExit("error: no compiled kernels here; run make install first")
    return found.path.parent


def run(checkout: Path, surroundings: dict[str, str], overrides: tuple[str, ...], folder: Path) -> str:
    """Run one case; why it failed, or nothing."""
    world = () if any(item.startswith("cluster=") for item in overrides) else ("cluster=virtual",)
    done = subprocess.run(
        [sys.executable, "run.py", *SHORT, *world, *overrides, f"hydra.run.dir={folder}"],
        cwd=checkout,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1][:300]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what differs; keys that only the newer record has are new, not different."""
    found = []
    for name, value in before.items():
        other = after[name]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            other = [{key: row.get(key) for key in old} for old, row in zip(value, other, strict=False)]
        if value != other:
            found.append(name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if arguments.only in name}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gradwire-compare-") as name:
        folder = Path(name)
        base = folder / "base"
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(base)], check=True)
        subprocess.run(["git", "-C", str(base), "checkout", "--quiet", arguments.base], check=True)
        worlds = [(base, sources(base, folder / "before")), (ROOT, sources(ROOT, folder / "after"))]
        for number, (label, overrides) in enumerate(chosen.items()):
            places = [folder / f"case{number}-{side}" for side in ("before", "after")]
            with ThreadPoolExecutor() as both:
                started = [
                    both.submit(run, *world, overrides, at) for world, at in zip(worlds, places, strict=True)
                ]
            errors = [side.result() for side in started]
            verdict = "; ".join(error for error in errors if error)
            if not verdict:
                different = differences(*(outcome(place) for place in places))
                verdict = f"differs in {', '.join(different)}" if different else "same"
            failed += verdict != "same"
            print(f"{label:<30} {verdict}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cases are the same as at {arguments.base}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
