"""The effect of `GRADWIRE_CUDA` on the build: read from scikit-build-core and CMake, without compiling."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from cmake import CMAKE_BIN_DIR
from ninja import BIN_DIR
from scikit_build_core.settings.skbuild_read_settings import SettingsReader

ROOT = Path(__file__).parents[1]

PATH = "/usr/bin:/bin"
"""The folders with g++, and usually without nvcc."""


@pytest.mark.parametrize("state", ["wheel", "editable"])
@pytest.mark.parametrize("asked", [None, "ON", "OFF"])
def test_every_kind_of_installation_obeys_the_environment(
    asked: str | None, state: Literal["wheel", "editable"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADWIRE_CUDA", raising=False)
    if asked is not None:
        monkeypatch.setenv("GRADWIRE_CUDA", asked)
    settings = SettingsReader.from_file(ROOT / "pyproject.toml", {}, state=state).settings
    assert dict(settings.cmake.define) == {
        "GRADWIRE_CUDA": asked or "AUTO",
        "GRADWIRE_EMULATION": "OFF",
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ON", "GRADWIRE_CUDA=ON, but there is no nvcc that works"),
        ("OFF", None),
        ("yes", "GRADWIRE_CUDA=yes: choose AUTO, ON or OFF"),
    ],
)
def test_what_cannot_be_built_is_refused(asked: str, said: str | None, tmp_path: Path) -> None:
    if asked == "ON" and shutil.which("nvcc", path=PATH):
        pytest.skip("nvcc lies beside g++ here, so no PATH has one without the other")
    cmake, ninja = Path(CMAKE_BIN_DIR) / "cmake", Path(BIN_DIR) / "ninja"
    options = (f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DGRADWIRE_CUDA={asked}")
    configured = subprocess.run(
        [cmake, "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *options],
        env={**{name: value for name, value in os.environ.items() if name != "CUDACXX"}, "PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    words = " ".join(configured.stderr.split())
    assert (configured.returncode == 0) == (said is None), words
    assert said is None or said in words
