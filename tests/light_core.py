"""Runs the library with torch and numpy alone: every codec on every topology, and `attach`.

A program of its own: `python tests/light_core.py` in an environment without other packages. `--block` hides
those that are there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HARNESS_NEEDS = (
    *("accelerate", "antlr4", "datasets", "filelock", "huggingface_hub", "hydra", "matplotlib", "omegaconf"),
    *("pandas", "PIL", "psutil", "pyarrow", "regex", "requests", "safetensors", "tokenizers", "tqdm"),
    *("transformers", "wandb", "yaml"),
)


class OthersHidden(PathFinder):
    """Finds none of the harness's packages, as if they were not installed."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hidden = fullname.partition(".")[0] in HARNESS_NEEDS
        return None if hidden else super().find_spec(fullname, path, target)


def every_codec_on_every_topology() -> int:
    """Two steps each between three workers; returns the number of pairs."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "codecs"))
    from codec_rounds import MODEL, Cluster, gradients

    from gradwire.codecs.registry import codec_classes
    from gradwire.harness.comm.topology.registry import TOPOLOGIES

    pairs = 0
    for codec in codec_classes():
        if codec == "backend":  # it is the process group's own, see `attached`
            continue
        for topology in TOPOLOGIES:
            cluster = Cluster(3, topology, codec)
            for step in range(2):
                cluster.step((MODEL, gradients(MODEL, 3, step)))
            pairs += 1
    return pairs


def attached(codec: str) -> None:
    """A model that learns through `attach`, in a process group of one."""
    import torch
    import torch.distributed as dist

    import gradwire

    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    synchronizer = gradwire.attach(model, codec=codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(64, 16)
    losses = []
    for _ in range(10):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses
    synchronizer.world.close()
    dist.destroy_process_group()


def refused_in_one_line() -> str:
    """The error of an import of the harness."""
    try:
        import gradwire.harness.trainer.parts  # noqa: F401
    except ModuleNotFoundError as error:
        return str(error)
    raise AssertionError("the harness was imported: this environment has its packages")


def main(arguments: list[str]) -> None:
    if arguments == ["--block"]:
        sys.meta_path[:] = [OthersHidden if finder is PathFinder else finder for finder in sys.meta_path]
    print(f"{every_codec_on_every_topology()} pairs of a codec and a topology")
    for codec in ("dynamiq", "backend"):
        attached(codec)
    said = refused_in_one_line()
    assert 'pip install "gradwire[harness]"' in said and "\n" not in said, said
    loaded = sorted(name for name in HARNESS_NEEDS if name in sys.modules)
    assert not loaded, loaded
    print(said)


if __name__ == "__main__":
    main(sys.argv[1:])
