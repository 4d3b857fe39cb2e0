"""gptme: a plugin folder, named in its configuration.

gptme 0.35.1 reads `~/.config/gptme/config.toml`, whatever XDG_CONFIG_HOME says. Of the folder it imports `tools`, a
package, and takes the tool, hooks and commands that it finds there; the package needs a second module to count as one.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

from pi_mcp import files
from pi_mcp.errors import PiMcpError
from pi_mcp.hosts.install import toml_edit
from pi_mcp.hosts.install.apply import read
from pi_mcp.hosts.install.entries import record_place, text_of
from pi_mcp.hosts.install.found import of_python
from pi_mcp.hosts.install.plan import Change, Found, as_record
from pi_mcp.hosts.install.seam import Seam
from pi_mcp.hosts.install.shim_host import CLIENT, ShimHost
from pi_mcp.hosts.install.surroundings import Surroundings
from pi_mcp.text import clean_line

PLUGIN = "pi_mcp_gptme"
"""The plugin's name for gptme, and a name that no other Python package has."""
_PATHS = ("plugins", "paths")
_ENABLED = ("plugins", "enabled")


class Gptme(ShimHost):
    name = "gptme"
    title = "gptme"
    places = MappingProxyType({**{name: f"tools/{name}" for name in CLIENT}, "gptme.py": "tools/__init__.py"})
    markers = MappingProxyType({"__init__.py": b'"""pi-mcp for gptme: see tools/."""\n'})
    record = "tools/pi_mcp_shim.json"

    def folder(self, around: Surroundings) -> Path:
        return around.home / ".config" / "gptme" / "plugins" / PLUGIN

    def detect(self, around: Surroundings) -> Found:
        return of_python(around, "gptme", "gptme")

    def settings(self, around: Surroundings, *, present: bool) -> tuple[Change, ...]:
        path = around.home / ".config" / "gptme" / "config.toml"
        text, real = text_of(path)
        shown = clean_line(str(real), 1000)
        folder = str(self.folder(around))
        enabled = toml_edit.parsed(text, shown).get("plugins")
        listed = enabled.get("enabled") if isinstance(enabled, dict) else None
        lines: list[str] = []
        note = record_place(self.name, real, around)
        seam, made = _noted(note)
        after = text
        steps = [(_PATHS, folder)]
        # A list of plugins that may be used keeps all others out.
        if listed if present else isinstance(listed, list) and PLUGIN in listed:
            steps.append((_ENABLED, PLUGIN))
        for keys, element in steps:
            change = toml_edit.with_element if present else toml_edit.without_element
            changed = change(after, shown, keys, element)
            if changed != after:
                lines.append(f"{'+' if present else '-'} {'.'.join(keys)}: {clean_line(element, 1000)!r}")
            after = changed
        forget = (Change(note, read(note), None, quiet=True),) if not present and note.exists() else ()
        if after == text:
            return forget
        before = text.encode() if real.exists() else None
        if present:
            seam = Seam.between(text, after, PLUGIN)
            about = {"path": str(real), "made": before is None, "seam": None if seam is None else seam.to_json()}
            return (
                Change(note, read(note), as_record(about), quiet=True),
                Change(real, before, after.encode(), tuple(lines)),
            )
        whole = None if seam is None else seam.without(text)
        if whole is not None and _free(whole, shown, [(_PATHS, folder), (_ENABLED, PLUGIN)]):
            after = whole
        gone = not after and made
        return (Change(real, before, None if gone else after.encode(), tuple(lines)), *forget)

    def warnings(self, around: Surroundings) -> list[str]:
        if self.detect(around).present:
            return []
        return ["gptme was not found on the PATH; the plugin is for one that reads this configuration."]

    def next_steps(self, around: Surroundings) -> tuple[str, ...]:
        del around
        return ("Start `gptme` anew, best with `--tool-format tool`, and type `/mcp`.",)


def _free(text: str, shown: str, elements: list[tuple[tuple[str, ...], str]]) -> bool:
    """Is it TOML, with none of these in its lists?"""
    try:
        return all(toml_edit.without_element(text, shown, *one) == text for one in elements)
    except PiMcpError:
        return False


def _noted(path: Path) -> tuple[Seam | None, bool]:
    """What our write put into the settings, and whether they were made with it; of an older write they were."""
    try:
        value = json.loads(files.read_private(path, 65536) or b"{}")
        return Seam.from_json(value.get("seam"), PLUGIN), value.get("made", True) is True
    except (OSError, ValueError, AttributeError, RecursionError):
        return None, True
