"""Each probe says what it found, or what is missing, what that disables and how to get it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from gradwire.harness.doctor import devices, hubs, software, storage, tools
from gradwire.harness.doctor.findings import Finding, FindingsSection
from gradwire.harness.doctor.tools import output_of
from gradwire.harness.files.writing import size_text
from gradwire.harness.network.shaped.check import try_namespace

GIB = 2**30


def by_name(section: FindingsSection) -> dict[str, Finding]:
    return {finding.name: finding for finding in section.findings}


def assert_helpful(section: FindingsSection) -> None:
    """A missing item's finding says what that disables and what to do."""
    for finding in section.findings:
        assert finding.value
        if finding.state != "ok":
            assert finding.disables, finding
            assert finding.remedy, finding


def test_packages_are_found_or_missed() -> None:
    everything = software.software(lambda package: "1.2")
    assert {finding.state for finding in everything.findings} == {"ok"}
    assert by_name(everything)["lm-eval"].value == "1.2"
    nothing = software.software(lambda package: None)
    assert_helpful(nothing)
    found = by_name(nothing)
    assert found["wandb"].state == found["datasets"].state == found["lm-eval"].state == "missing"
    assert found["torch"].state == found["transformers"].state == "needed"
    assert found["wandb"].remedy == "pip install wandb"
    assert "tracking=wandb" in found["wandb"].disables
    assert by_name(software.software())["torch"].state == "ok", "this test runs in one with torch"


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10, 9), "needed"), ((3, 11, 0), "ok"), ((3, 13, 2), "ok"), ((3, 14, 0), "needed")],
)
def test_python(version: tuple[int, ...], state: str) -> None:
    found = by_name(software.software(lambda package: "1", version))["python"]
    assert (found.state, found.value) == (state, ".".join(map(str, version)))


def test_sources() -> None:
    clean = by_name(software.sources(("0123456789abcdef", False), "0.1"))
    assert (clean["commit"].value, clean["gradwire"].value) == ("0123456789ab", "0.1")
    assert (
        by_name(software.sources(("0123456789abcdef", True)))["commit"].value == "0123456789ab, with changes"
    )
    outside = software.sources((None, None))
    assert_helpful(outside)
    assert by_name(outside)["commit"].state == "missing"


def built(level: str | None, *, cuda: bool, gpus: int, simulator: bool = True) -> FindingsSection:
    return FindingsSection("", software.libraries(software.Compiled(level, cuda, gpus, simulator)))


def test_libraries() -> None:
    everything = by_name(built("v3", cuda=True, gpus=2))
    assert everything["simulated clock"].value == "built"
    assert everything["kernels"].value == "auto means cpu on CPUs, cuda on GPUs"
    assert everything["kernels=cpu"].value == "built, level v3 (AVX2)"
    assert everything["kernels=cuda"].value == "built, 2 GPUs"
    nothing = built(None, cuda=False, gpus=0, simulator=False)
    assert_helpful(nothing)
    found = by_name(nothing)
    assert found["kernels"].value == "auto means default on CPUs, default on GPUs"
    assert found["kernels=cpu"].state == found["kernels=cuda"].state == "missing"
    assert "cluster=virtual" in found["simulated clock"].disables
    no_gpu = by_name(built("base", cuda=True, gpus=0))
    assert no_gpu["kernels=cuda"] == Finding("kernels=cuda", "built, no GPU that they can run on")


def test_cores_and_their_limit(tmp_path: Path) -> None:
    assert devices.cores(8, 4, tmp_path).value == "8, 4 usable"
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert devices.cores(8, 4, tmp_path).value == "8, 4 usable, limited to the time of 1.5"
    for text in ("max 100000\n", "800000 100000\n", "nonsense"):
        (tmp_path / "cpu.max").write_text(text)
        assert devices.cores(8, 4, tmp_path).value == "8, 4 usable"


def test_memory(tmp_path: Path) -> None:
    system, group = tmp_path / "meminfo", tmp_path / "max"
    assert devices.memory(system, group).value == "unknown"
    system.write_text("MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n")
    assert devices.memory(system, group) == Finding("memory", "16 GiB, 8 GiB available")
    group.write_text(f"{2 * GIB}\n")
    little = devices.memory(system, group)
    assert (little.value, little.state) == ("2 GiB, 2 GiB available", "missing")
    assert "fewer workers" in little.remedy
    group.write_text("max\n")
    assert devices.memory(system, group).state == "ok"


def test_gpus() -> None:
    gpu, cuda, driver = devices.gpus(lambda command: "580.65\n580.65", lambda: ["H200, 139 GiB"], "13.0")
    assert (gpu.value, cuda.value, driver.value) == ("H200, 139 GiB", "13.0", "580.65")
    none = FindingsSection("", devices.gpus(lambda command: None, list, None))
    assert_helpful(none)
    assert {finding.state for finding in none.findings} == {"missing"}
    (unused, *_) = devices.gpus(lambda command: "580.65", list, None)
    assert unused.remedy.startswith("a torch with CUDA")


def test_backends_and_threads() -> None:
    assert [finding.state for finding in devices.backends(lambda: True, lambda: True)] == ["ok", "ok"]
    neither = FindingsSection("", devices.backends(lambda: False, lambda: False))
    assert_helpful(neither)
    assert [finding.state for finding in neither.findings] == ["needed", "missing"]
    assert devices.threads({"OMP_NUM_THREADS": "7"}).value.endswith("OMP_NUM_THREADS 7")


def test_compilers() -> None:
    printed = {"/bin/mycc": "mycc (Debian) 12.2.0", "/bin/nvcc": "built in 2025\nrelease 13.0, V13.0.88"}
    found = by_name(
        tools.tools(
            lambda name: f"/bin/{name}" if name in ("mycc", "nvcc", "git") else None,
            lambda command: printed.get(command[0]),
            {"CXX": "mycc"},
        )
    )
    assert found["C++ compiler"].value == "mycc 12.2.0"
    assert (found["nvcc"].value, found["git"].value) == ("13.0", "/bin/git")
    assert found["cmake"].state == "missing"
    nothing = tools.tools(lambda name: None, lambda command: None, {})
    assert_helpful(nothing)
    assert {finding.state for finding in nothing.findings} == {"missing"}


def test_shaping() -> None:
    everything = tools.shaping(lambda name: f"/sbin/{name}", lambda: 0, lambda: None)
    assert {finding.state for finding in everything.findings} == {"ok"}
    assert by_name(everything)["user"].value == "root"
    nothing = tools.shaping(lambda name: None, lambda: 1000, lambda: "unshare: Operation not permitted")
    assert_helpful(nothing)
    found = by_name(nothing)
    assert (found["user"].value, found["user"].state) == ("not root", "missing")
    assert found["tc"].state == found["ip"].state == "missing"
    assert found["network namespaces"].value == "not possible: unshare: Operation not permitted"


def interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def test_a_namespace_is_tried_and_nothing_is_left() -> None:
    """The probe cleans up, whether a namespace is possible here or not."""
    before, own = interfaces(), os.readlink("/proc/self/ns/net")
    reason = try_namespace()
    assert reason is None or reason.strip()
    assert (interfaces(), os.readlink("/proc/self/ns/net")) == (before, own)
    assert not list(Path("/run/netns").glob("gradwire*"))


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        ("pass", None),
        ("import sys; sys.exit('unshare: Operation not permitted')", "unshare: Operation not permitted"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)
def test_why_a_namespace_cannot_be_used(attempt: str, reason: str | None) -> None:
    assert try_namespace(attempt) == reason


def test_hubs_are_asked_together_and_not_for_long() -> None:
    asked, enough = threading.Barrier(3), threading.Event()

    def reach(address: str) -> str | None:
        asked.wait(30)  # until both are being asked
        enough.wait(30)
        return None

    bystander = threading.Thread(target=asked.wait, args=(30,))
    bystander.start()
    slow = hubs.ask(["a", "b"], reach, timeout_s=0.2)
    bystander.join()
    assert not asked.broken
    assert slow == {"a": "no answer within 0.2 s", "b": "no answer within 0.2 s"}
    enough.set()
    assert hubs.ask(["a", "b"], {"a": None, "b": "refused"}.get) == {"a": None, "b": "refused"}


def test_hubs(tmp_path: Path) -> None:
    nowhere = {"NETRC": str(tmp_path / "none"), "WANDB_CONFIG_DIR": str(tmp_path)}
    asked: list[str] = []

    def reach(address: str) -> str | None:
        asked.append(address)
        return "Connection refused" if "wandb" in address else None

    section = hubs.hubs(nowhere, reach)
    assert_helpful(section)
    found = by_name(section)
    assert found["Hugging Face"] == Finding("Hugging Face", "https://huggingface.co answers")
    assert found["wandb"].value == "https://api.wandb.ai: Connection refused"
    assert found["wandb login"].value.startswith("none; tracking=wandb is offline")
    assert sorted(asked) == ["https://api.wandb.ai", "https://huggingface.co"]

    asked.clear()
    own = {"HF_ENDPOINT": "https://mirror", "WANDB_BASE_URL": "https://own", "WANDB_API_KEY": "secret"}
    found = by_name(hubs.hubs(nowhere | own, reach))
    assert sorted(asked) == ["https://mirror", "https://own"]
    assert found["wandb login"].state == "ok"
    assert not any("secret" in finding.value for finding in found.values())

    asked.clear()
    section = hubs.hubs(nowhere | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}, reach)
    assert_helpful(section)
    assert not asked, "who wants to be offline is left alone"
    hugging_face = by_name(section)["Hugging Face"]
    assert (hugging_face.value, hugging_face.remedy) == (
        "not asked: HF_HUB_OFFLINE is set",
        "unset HF_HUB_OFFLINE",
    )
    assert "WANDB_MODE=offline is set" in by_name(section)["wandb"].value


def test_a_closed_port_cannot_be_reached() -> None:
    assert "refused" in str(hubs._reach("http://127.0.0.1:9"))
    assert hubs._reach("no address")


def test_folders(tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "deep"
    roomy = {"free_bytes": lambda path: 100 * GIB}
    there = storage.folder("c", kept, "runs", "C=<folder>", **roomy)
    assert there == Finding("c", f"{kept}: not there yet, 100 GiB free, writable")
    assert not kept.parent.exists()
    kept.mkdir(parents=True)
    (kept / "file").write_bytes(b"x" * 2048)
    assert f"{kept}: 2 KiB," in storage.folder("c", kept, "runs", "C=<folder>", **roomy).value
    full = storage.folder("c", kept, "runs", "C=<folder>", free_bytes=lambda path: 1000)
    assert (full.state, full.remedy) == ("missing", "C=<folder>")
    under_a_file = storage.folder("c", kept / "file" / "folder", "runs", "C=<folder>", needed=True, **roomy)
    assert under_a_file.state == "needed"
    assert "cannot be written" in under_a_file.value


def test_all_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "own"))
    found = by_name(storage.storage({"HF_HOME": str(tmp_path / "hf")}, tmp_path))
    assert [finding.value.partition(":")[0] for finding in found.values()] == [
        str(tmp_path / "own"), str(tmp_path / "hf"), str(tmp_path / "outputs")
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_commands() -> None:
    assert output_of([sys.executable, "-c", "print('a')"]) == "a"
    assert output_of([sys.executable, "-c", "import sys; print('a'); sys.exit(1)"]) is None
    assert output_of(["no-such-program"]) is None


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (23.5 * GIB, "23.5 GiB"), (5 * 2**52, "20480 TiB")],
)
def test_sizes(num_bytes: float, text: str) -> None:
    assert size_text(num_bytes) == text
