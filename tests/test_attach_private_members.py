"""Private members of DistributedDataParallel that the library needs: a PyTorch without one is named here."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from torch._C._distributed_c10d import Reducer
from torch.nn.parallel import DistributedDataParallel

from gradwire.harness.library.ddp_internals import TORCH

ROOT = Path(__file__).resolve().parent.parent

OF_MODEL = (
    "_build_debug_param_to_name_mapping",
    "_build_params_for_reducer",
    "_comm_hooks",
    "_ddp_init_helper",
    "_divide_by_initial_world_size",
    "_get_ddp_logging_data",
    "_has_rebuilt_buckets",
    "_join_config",
    "_remove_autograd_hooks",
    "_static_graph_delay_allreduce_enqueued",
    "_use_python_reducer",
)
OF_REDUCER = (
    "_get_local_used_map",
    "_get_zeros_like_grad_buckets",
    "_push_all_rebuilt_params",
    "_rebuild_buckets",
    "_set_static_graph",
)


@pytest.mark.parametrize("name", OF_MODEL)
def test_the_model_has_it(name: str) -> None:
    known = inspect.getsource(DistributedDataParallel)
    assert name in known, f"PyTorch {torch.__version__}: DistributedDataParallel has no {name}"


@pytest.mark.parametrize("name", OF_REDUCER)
def test_the_reducer_has_it(name: str) -> None:
    assert hasattr(Reducer, name), f"PyTorch {torch.__version__}: DDP's reducer has no {name}"


def test_the_lists_are_complete_and_one_module_uses_them() -> None:
    for path in sorted((ROOT / "harness" / "library").glob("*.py")):
        text, is_fence = path.read_text(), path.name == "ddp_internals.py"
        of_model = {*re.findall(r"\bmodel(?:\.|, \")(_[a-z]\w*)", text)} - {"_orig_mod"}
        assert of_model == ({*OF_MODEL} if is_fence else set()), path
        of_reducer = {*re.findall(r"\breducer\.(_[a-z]\w*)", text)}
        assert of_reducer == ({*OF_REDUCER} if is_fence else set()), path


def test_this_version_of_pytorch_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "torch")
    assert needed.specifier.contains(torch.__version__.partition("+")[0], prereleases=True)
    assert str(needed.specifier) == str(SpecifierSet(TORCH))
