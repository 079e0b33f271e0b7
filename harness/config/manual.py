"""The table of groups and choices in `python run.py --help`, read from the files' first lines."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from gradwire.codecs.plugins import ENTRY_POINTS, announced


def describe(path: Path) -> tuple[str, str]:
    """What a configuration file is and the command that uses it, from its first comment line.

    The line reads `# <what it is>: python run.py <overrides>`; a package directive may stand before it.
    """
    for line in path.read_text().splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            what, _, command = line.lstrip("# ").rpartition(": python run.py")
            return what, f"python run.py{command}"
    return "", ""


def choices_table(conf: Path) -> str:
    """Every group under `conf` with its choices, one line each."""
    groups = sorted(folder for folder in conf.iterdir() if folder.is_dir() and folder.name != "hydra")
    lines: list[str] = []
    for group in groups:
        choices = sorted(group.glob("*.yaml"))
        width = max(12, *(len(path.stem) + 1 for path in choices))
        for index, path in enumerate(choices):
            label = f"{group.name}=" if index == 0 else ""
            lines.append(f"  {label:<12}{path.stem:<{width}}{describe(path)[0]}")
        if group.name in ENTRY_POINTS:
            for name, point in sorted(announced(group.name).items()):
                lines.append(f"  {'':<12}{name:<{width}}plug-in {point.value}")
            lines.append(
                f"  {'':<12}{'<module>:<name>':<{width}}  a plug-in of your own, see docs/extending.md"
            )
    return "\n".join(lines).replace("$", "$$")  # Hydra substitutes $NAME in what it prints


def register_manual(conf: Path) -> None:
    """Make `${gradwire_choices:}` known to the help template; repeating it changes nothing."""
    OmegaConf.register_new_resolver("gradwire_choices", lambda: choices_table(conf), replace=True)
