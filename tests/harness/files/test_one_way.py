"""Files that others wrote are read by harness/files, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[3] / "harness"

READS = re.compile(
    r"json\.loads?\(|yaml\.\w*load|OmegaConf\.load|np\.load\(|safe_open|load_file\(|torch\.load|pickle\.load"
    r"|\.read_text\(|\.read_bytes\(|copytree"
)

REASONS = {
    "config/manual.py": "our own sources",
    "data/cache.py": "our own sources",
    "data/embedded.py": "the sources of Python's library",
    "data/formats.py": "lines of text whose length and expansion `files.hostile` bounds",
    "data/packing.py": "arrays that were just written",
    "data/token_data.py": "arrays that the cache has verified by their digests; mapped, never unpickled",
    "data/settings.py": "our own configuration",
    "doctor/devices.py": "what the kernel says",
    "launch/stacks.py": "what the kernel says, and stacks that a rank of this run has written",
    "network/shaped/star.py": "what `ip` prints",
    "network/shaped/background_process.py": "its own argument",
    "network/shaped/background.py": "what a process started here prints",
    "library/agreement.py": "what another rank of this job says in the store",
    "library/saved.py": "a tensor of a state that the caller hands over",
    "record/identity.py": "a digest of the user's own file of codec times, which is checked before",
    "record/provenance.py": "our own sources, and what the kernel says",
    "report/catalogue.py": "our own documentation",
    "report/figures.py": "a drawing that was just written",
    "report/kept_rows.py": "JSON of lines that `files.compressed` has read",
    "studies/bench/task.py": "JSON of lines that `files.reading` has read",
    "tasks/results.py": "a table that this command's sweep has just written",
    "tracking/messages.py": "JSON made a line before, and a digest",
    "trainer/measured_steps.py": "JSON that another rank has just made",
    "tracking/view.py": "a process of its own that imports nothing of gradwire and cannot end the run",
}
"""Modules that read without it, and why they may."""


READERS = {
    *("open_file", "read_bytes", "read_text", "read_lines", "file_digest"),
    *("read_json", "read_json_lines", "read_yaml", "read_safetensors", "check_safetensors"),
}

FROM_ELSEWHERE = ("report", "studies/statistics", "record")
"""Packages that read folders which others made: records, plots and files next to them."""

GIVEN = {
    "record/gradients.py": "gradients, by a file's name that the user gives or a run's folder has",
    "record/saved_weights.py": "weights, by a file's name that the user gives",
    "record/directory.py": "the digest of a profile, by a path that the user gives",
}
"""Modules in them that read a file which the user names, who may use links."""


def unbound(module: Path) -> list[str]:
    """The calls in a module that read a file without saying which folder no link may lead out of."""
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if name in READERS and "inside" not in {keyword.arg for keyword in node.keywords}:
            found.append(f"{module.relative_to(HARNESS).as_posix()}:{node.lineno} {name}")
    return found


def test_no_link_leads_out_of_a_folder_from_elsewhere() -> None:
    modules = [path for package in FROM_ELSEWHERE for path in (HARNESS / package).rglob("*.py")]
    found = [each for path in modules for each in unbound(path)]
    assert not [each for each in found if each.partition(":")[0] not in GIVEN], "say inside="
    assert GIVEN.keys() <= {each.partition(":")[0] for each in found}, "no longer needed"


def test_files_are_read_in_one_way() -> None:
    found = {
        path.relative_to(HARNESS).as_posix()
        for path in HARNESS.rglob("*.py")
        if path.parent.name != "files" and READS.search(path.read_text())
    }
    assert found - REASONS.keys() == set(), "read through gradwire.harness.files, or say here why not"
    assert REASONS.keys() - found == set(), "no longer needed"
