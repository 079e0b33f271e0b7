"""The page, its exit code, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.harness.config.tasks import DoctorTask
from gradwire.harness.doctor.findings import WIDTH, Finding, FindingsSection, render_json, render_text
from gradwire.harness.record.settings import TaskConfig
from gradwire.harness.tasks import doctor

GOOD = FindingsSection("Devices", [Finding("cores", "2"), Finding("memory of this", "much")])
POOR = FindingsSection(
    "Tools", [Finding("nvcc", "missing", "missing", "kernels in CUDA", "NVIDIA's toolkit " * 9)]
)
BAD = FindingsSection("Software", [Finding("torch", "missing", "needed", "everything", "pip install torch")])


def test_the_page_is_aligned_and_says_what_to_do() -> None:
    text = render_text([GOOD, POOR, BAD])
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "  cores           2" in lines
    assert "  memory of this  much" in lines
    (nvcc,) = [line for line in lines if line.startswith("- nvcc")]
    assert nvcc.startswith("- nvcc            missing; disables kernels in CUDA; remedy: NVIDIA's toolkit")
    assert " ".join(text.split()).count("NVIDIA's toolkit") == 9, "long lines wrap and lose nothing"
    assert "! torch           missing; disables everything; remedy: pip install torch" in lines
    assert lines[-1] == "python run.py size=tiny cannot run here: see torch"
    assert render_text([GOOD, POOR]).splitlines()[-1] == "python run.py size=tiny can run here"


def test_the_same_as_json() -> None:
    content = json.loads(render_json([GOOD, BAD]))
    assert content["can_run"] is False
    assert json.loads(render_json([GOOD, POOR]))["can_run"] is True
    assert content["sections"]["Software"] == [
        {"name": "torch", "value": "missing", "state": "needed", "disables": "everything",
         "remedy": "pip install torch"}
    ]  # fmt: skip


@pytest.mark.parametrize(("sections", "code"), [([GOOD, POOR], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_says_whether_the_basic_run_is_possible(
    sections: list[FindingsSection],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "PROBES", [lambda section=section: section for section in sections])
    assert doctor.run(DoctorTask(task=TaskConfig("doctor"), format="text")) == code
    assert capsys.readouterr().out == render_text(sections) + "\n"
    assert doctor.run(DoctorTask(task=TaskConfig("doctor"), format="json")) == code
    assert capsys.readouterr().out == render_json(sections) + "\n"


def test_a_probe_that_fails_spoils_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def driver() -> FindingsSection:
        raise RuntimeError("driver too old\nreally")

    monkeypatch.setattr(doctor, "PROBES", [driver, lambda: GOOD])
    assert doctor.run(DoctorTask(task=TaskConfig("doctor"), format="text")) == 0
    printed = capsys.readouterr().out
    assert "could not be examined: RuntimeError: driver too old really" in printed
    assert "memory of this" in printed


def test_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All probes run for real; the tests themselves need what the basic run needs. Nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "GRADWIRE_CACHE": "c",
        "HF_HOME": "h",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }.items():
        monkeypatch.setenv(name, value)
    assert doctor.run(DoctorTask(task=TaskConfig("doctor"), format="json")) == 0
    content = json.loads(capsys.readouterr().out)
    named = {item["name"] for section in content["sections"].values() for item in section}
    prescribed = {"torch", "transformers", "datasets", "accelerate", "hydra-core", "lm-eval", "wandb"}
    assert named >= prescribed | {
        "python",
        "numpy",
        "safetensors",
        "commit",
        "kernels",
        "CPU cores",
        "memory",
    }
    assert named >= {"GPUs", "gloo", "nccl", "nvcc", "cmake", "tc", "ip", "network namespaces", "wandb login"}
    assert not list(tmp_path.iterdir())
