"""Writes the deployment files with the settings of a user, and finds what differs from them later.

A manifest beside the files holds the version, the options and a checksum of each file: a file that
was changed by hand is replaced by force only, and a later version shows which files it would
write anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from glob import glob
from hashlib import sha256
from pathlib import Path

from sentinel import __version__
from sentinel.assets.option import OPTIONS
from sentinel.transport.replaced_file import replace_file

MANIFEST_NAME = "sentinel-assets.json"
_IMAGE = ("deploy/container", "constraints.txt")
TARGETS = {
    "prometheus": ("deploy/prometheus", "deploy/alertmanager"),
    "vmalert": ("deploy/vmalert", "deploy/alertmanager"),
    "mimir": ("deploy/mimir",),
    "thanos": ("deploy/thanos", "deploy/alertmanager"),
    "grafana": ("grafana",),
    "grafana-alerting": ("deploy/grafana-alerting",),
    "slurm": ("deploy/slurm",),
    "kubernetes": ("deploy/kubernetes", *_IMAGE, "grafana/dashboards"),
    "helm": ("deploy/helm", *_IMAGE),
    "systemd": ("deploy/systemd",),
    "agents": ("deploy/agents",),
    "compose": ("deploy/compose", *_IMAGE, "deploy/prometheus", "deploy/alertmanager", "grafana"),
}
"""The folders and files that are exported for each target."""
DOCS = "https://github.com/train-sentinel/train-sentinel/blob/main/docs"


class ChangedFilesError(Exception):
    """Files that an export would replace were changed by hand: `paths`."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(", ".join(paths))
        self.paths = paths


@dataclass(frozen=True)
class Manifest:
    """What was exported to a directory: targets, options that are not the default, checksums."""

    version: str = __version__
    targets: frozenset[str] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """The manifest of a directory; None without one. Raises OSError; ValueError if invalid."""
        path = directory / MANIFEST_NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            stored = json.loads(content)
            return cls(
                str(stored["version"]),
                frozenset(TARGETS) & {*stored["targets"]},
                {
                    each.name: str(stored["options"][each.name])
                    for each in OPTIONS
                    if each.name in stored["options"]
                },
                {str(name): str(value) for name, value in stored["files"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(f"{path} is not a manifest of exported files") from None

    def write(self, directory: Path) -> None:
        """Store it in the directory."""
        content = {
            "version": self.version,
            "targets": sorted(self.targets),
            "options": dict(self.options),
            "files": dict(self.checksums),
        }
        replace_file(directory / MANIFEST_NAME, (json.dumps(content, indent=1) + "\n").encode())


def rendered_files(targets: Iterable[str], options: Mapping[str, str]) -> dict[str, str]:
    """The text of each file of the targets by its path, with these options filled in.

    Raises OptionError for a value that is not valid, if one of the files contains it.
    """
    root = _root()
    wanted = sorted({each for target in targets for each in TARGETS[target]})
    patterns = (f"{each}/**" if (root / each).is_dir() else each for each in wanted)
    # Unlike rglob, it follows the links of the chart to rules and dashboards.
    found = (glob(each, root_dir=root, recursive=True) for each in patterns)  # noqa: PTH207
    paths = (path for each in found for path in sorted(each))
    texts = {
        path: (root / path).read_text(encoding="utf-8")
        for path in ["deploy/README.md", *paths]
        if (root / path).is_file() and not path.endswith(".pyc")
    }
    return {path: _fill_in(path, text, options) for path, text in texts.items()}


def export(
    directory: Path,
    targets: Iterable[str],
    options: Mapping[str, str | None],
    *,
    defaults: Mapping[str, str] | None = None,
    force: bool = False,
) -> list[str]:
    """Write the files of the targets into a directory; returns the paths of those that changed.

    Targets and options of an earlier export are kept, except for options that are given again; one
    that is None returns to its default. `defaults` are options that apply unless given, now or
    earlier. Raises ChangedFilesError, and writes nothing, if a file differs from what was exported
    and `force` is false; OSError; ValueError for an invalid manifest or option.
    """
    former = Manifest.read(directory) or Manifest()
    given = {**former.options, **options}
    chosen = {name: value for name, value in given.items() if value is not None}
    wanted = {**(defaults or {}), **chosen}
    all_targets = former.targets | {*targets}
    texts = rendered_files(all_targets, wanted)
    found = {path: _checksum(directory / path) for path in texts}
    new = {path: _text_checksum(text) for path, text in texts.items()}
    changed = [
        path
        for path, now in found.items()
        if now not in ("", new[path], former.checksums.get(path))
    ]
    if changed and not force:
        raise ChangedFilesError(changed)
    written = [path for path in texts if found[path] != new[path]]
    for path in written:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(directory / path, texts[path].encode())
    Manifest(__version__, all_targets, wanted, new).write(directory)
    return written


def differences(directory: Path) -> dict[str, str]:
    """What became of exported files, by path: `missing`, `changed`, `outdated`; of others nothing.

    A file is changed if it is not what was exported, and outdated if this version would write
    another one. Raises OSError; ValueError if nothing was exported to the directory.
    """
    manifest = Manifest.read(directory)
    if manifest is None:
        raise ValueError(f"{directory} holds no {MANIFEST_NAME}: nothing was exported to it")
    texts = rendered_files(manifest.targets, manifest.options)
    states = {}
    for path in sorted({*texts, *manifest.checksums}):
        found, exported = _checksum(directory / path), manifest.checksums.get(path, "")
        if not found:
            states[path] = "missing"
        elif found != exported:
            states[path] = "changed"
        elif path not in texts or exported != _text_checksum(texts[path]):
            states[path] = "outdated"
    return states


def _fill_in(path: str, text: str, options: Mapping[str, str]) -> str:
    if path.endswith(".md"):
        return text.replace("](../docs/", f"]({DOCS}/")
    replacements: dict[str, str] = {}
    for option in OPTIONS:
        if option.name in options and (
            found := dict(option.replacements(path, options[option.name]))
        ):
            option.check(options[option.name])
            replacements |= found
    # At once: the value of one option may contain the default of another one.
    pattern = "|".join(map(re.escape, sorted(replacements, key=len, reverse=True)))
    return re.sub(pattern, lambda match: replacements[match[0]], text) if replacements else text


def _checksum(path: Path) -> str:
    """Of a file; empty if there is none."""
    return sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _text_checksum(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _root() -> Path:
    """The folder with the files: of the wheel, or of a checkout."""
    packaged = Path(__file__).parent / "files"
    return packaged if packaged.is_dir() else Path(__file__).parents[2]
