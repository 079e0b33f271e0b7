"""A warm command behaves like a cold one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm import WarmPopen, warm_or_cold

SCRIPT = """
import os, signal, sys
seen = {name: os.environ.get(name) for name in ("GRADWIRE_PLUGINS", "RANK", "HOME")}
blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
leads = os.getsid(0) == os.getpgrp() == os.getpid()
handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(sys.argv, os.getcwd(), seen, blocked, leads, handler, __name__, os.getppid(), sys.path[:2])
print("said", file=sys.stderr)
"""

ENDS = {
    "well": "",
    "exit code": "sys.exit(3)",
    "exit text": "sys.exit('a reason')",
    "raises": "raise ValueError('why')",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="there commands start cold")
@pytest.mark.parametrize("end", ENDS)
def test_it_ends_and_prints_as_a_cold_one(end: str, tmp_path: Path) -> None:
    script, told = tmp_path / "script.py", []
    script.write_text(SCRIPT + ENDS[end])
    environment = os.environ | {"GRADWIRE_PLUGINS": "a:b", "RANK": "1", "PYTHONPATH": "/some/where"}
    for start in (subprocess.Popen, warm_or_cold):
        process = start(
            [sys.executable, str(script), "one", "two words"],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        out, err = process.communicate(timeout=60)
        lines = err.splitlines()
        told.append((process.returncode, out, lines[:1], lines[-1:]))
    assert isinstance(process, WarmPopen)
    cold, warm = told
    assert warm == cold


def test_what_a_command_imports_by_its_environment_starts_cold(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['HF_HOME'])")
    process = warm_or_cold(
        [sys.executable, str(script)],
        env=os.environ | {"HF_HOME": "elsewhere"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert not isinstance(process, WarmPopen)
    assert process.communicate(timeout=60) == ("elsewhere\n", None)
