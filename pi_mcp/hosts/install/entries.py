"""A client with a configuration file of its own: the gateway's entry in it, and nothing else of the file touched.

Comes in: where the file is, how the client spells an entry, what the entry is to say. Goes out: plans that add, renew
or remove the entry called `pi-mcp`. What was written is recorded by its SHA-256 with our state; an entry that the
person changed is named and stays. A file that does not parse is not written to; previews show the entry alone, since
the rest of such files holds other servers' secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pi_mcp import files
from pi_mcp.config import edit
from pi_mcp.config.gateway_entry import NAME, starts_gateway
from pi_mcp.config.masking import MASK, shown_entry, shown_text, shown_url
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.hosts.install import toml_edit
from pi_mcp.hosts.install.apply import read
from pi_mcp.hosts.install.plan import Change, Found, Installed, Kind, Plan, Wishes, as_record
from pi_mcp.hosts.install.seam import Seam
from pi_mcp.hosts.install.surroundings import BY_MODULE, Surroundings
from pi_mcp.hosts.install.variables import named_variables
from pi_mcp.text import clean_line

Entry = dict[str, Any]
_REFERENCE = re.compile(r"(?:Bearer )?(?:\$\{(?:env:)?[A-Za-z_]\w*\}|\$[A-Za-z_]\w*|\{env:[A-Za-z_]\w*\})")
"""A variable's value in a header, in the spelling of one of the clients."""


@dataclass(frozen=True, slots=True)
class EntryTarget:
    """One client: a row of the table in `clients.py`."""

    name: str
    title: str
    place: Callable[[Surroundings], Path]
    """The person's own file."""
    keys: tuple[str, ...]
    """Where servers stand in it."""
    local: Callable[[str, list[str]], Entry]
    """The entry that runs a command with arguments."""
    remote: Callable[[str], Entry] | None
    """The entry for an address; None where the file knows no addresses."""
    find: Callable[[Surroundings], Found]
    next_steps: tuple[str, ...]
    project: str | None = None
    """The file in a project's folder that the client reads, if `--project` is for it."""
    syntax: Literal["json", "toml"] = "json"
    remarks: tuple[str, ...] = ()
    """What to know before: warnings of every preview."""
    token: Callable[[str], Entry] | None = None
    """Members for a key in the variable of that name; None where the file can name no variable."""
    no_remote: str = ""
    """What to do where `remote` is None."""
    hands_over: Callable[[tuple[str, ...], Mapping[str, str]], Entry] | None = None
    """Members that make the client hand variables to the command, from the names that servers use and the environment
    of now; None where it hands over all."""
    kind: Kind = "client"

    def detect(self, around: Surroundings) -> Found:
        found = self.find(around)
        path = self.place(around)
        if not found.present and path.exists() and not self._alone(path, around):
            return Found(True, None, path)
        return found

    def _alone(self, path: Path, around: Surroundings) -> bool:
        """Is the file one that we made, with nothing but ours in it? Then it does not say that the client is here."""
        try:
            text, real = text_of(path)
            record = _Record.read(self.name, real, around)
            present = self._member(text, real)[0]
            if present is None or not self._ours(present, record) or _others(present, record):
                return False
            return record.made > len(self.keys) and _empty(self._without(text, real, record.made))
        except PiMcpError:
            return False

    def installed(self, around: Surroundings) -> Installed:
        path = self.place(around)
        try:
            text, real = text_of(path, follow=True)
            present = self._member(text, real)[0]
        except PiMcpError:
            return Installed("changed", None, path)
        if present is None:
            return Installed("none")
        record = _Record.read(self.name, real, around)
        ours = self._ours(present, record)
        # An address stays what it was; the command moves with pi-mcp.
        if _covers(present, self._entry(around, Wishes())) or (ours and "url" in present):
            return Installed("current", record.version or around.version, path)
        return Installed("outdated" if ours else "changed", record.version, path)

    def install(self, around: Surroundings, wishes: Wishes) -> Plan:
        def plan(**more: Any) -> Plan:
            return Plan(self.name, self.title, "install", **more)

        try:
            path = self._path(around, wishes)
            wanted = self._entry(around, wishes)
            text, real = text_of(path, follow=not wishes.project)
            present, (line, column) = self._member(text, real)
            record = _Record.read(self.name, real, around)
            undo = (f"pi-mcp uninstall {self.name}{' --project' if wishes.project else ''}",)
            warnings = self._warnings(around, wishes, text, real)
            if present == wanted or _covers(present, wanted):
                return plan(undo=undo, warnings=tuple(warnings), next_steps=self.next_steps)
            warnings = [*self.remarks, *warnings, *_through(path, real)]
            if present is not None and not self._ours(present, record):
                raise failure(
                    "configuration_invalid",
                    "command",
                    None,
                    f"{clean_line(str(real), 1000)}, line {line}, column {column}: an entry `{NAME}` is there that "
                    "pi-mcp did not write, or that was changed by hand; nothing was written.",
                    "Remove or rename it, then repeat this.",
                )
            merged = {**_others(present, record), **wanted}
            base, new_to_it = text, present is None
            if present is not None and self.syntax == "toml" and present.keys() - merged.keys():
                base, new_to_it = self._restored(text, real, record), True
            after = self._with(base, real, merged)
            made = self._made(text, real) if present is None else record.made
            folders = _missing(real) if present is None else record.folders
            seam = Seam.between(base, after, NAME) if new_to_it else record.seam and record.seam.renewed(base, after)
            new = _Record(_digest(wanted), tuple(sorted(wanted)), around.version, made, folders, seam)
            changes = (
                record.change(new, self.name, real, around),
                Change(real, _bytes(text, real), after.encode(), self._shown(present, merged)),
            )
            return plan(changes=changes, undo=undo, warnings=tuple(warnings), next_steps=self.next_steps)
        except PiMcpError as error:
            return plan(problem=error.diagnostic)

    def uninstall(self, around: Surroundings, wishes: Wishes) -> Plan:
        def plan(**more: Any) -> Plan:
            return Plan(self.name, self.title, "uninstall", **more)

        try:
            path = self._path(around, wishes)
            text, real = text_of(path, follow=not wishes.project)
            present, (line, _) = self._member(text, real)
            record = _Record.read(self.name, real, around)
            forget = (record.change(None, self.name, real, around),) if record.digest else ()
            if present is None:
                return plan(changes=forget)
            whole = self._ours(present, record) and not _others(present, record)
            if not whole:
                where = f"{clean_line(str(real), 1000)}, line {line}"
                return plan(kept=(f"`{NAME}` in {where} is not as pi-mcp wrote it. Remove it yourself.",))
            after = self._restored(text, real, record)
            emptied = record.made > len(self.keys) and _empty(after)
            folders = tuple(real.parents[: record.folders]) if emptied else ()
            change = Change(real, _bytes(text, real), None if emptied else after.encode(), self._whole("-", present))
            return plan(changes=(change, *forget), folders=folders, warnings=_through(path, real))
        except PiMcpError as error:
            return plan(problem=error.diagnostic)

    # What the entry is

    def _entry(self, around: Surroundings, wishes: Wishes) -> Entry:
        if wishes.token_env is not None and (wishes.url is None or not wishes.token_env.isidentifier()):
            raise failure(
                "usage",
                "command",
                None,
                "--token-env takes the name of a variable, and goes with --url.",
                "Such as --url https://mcp.example.com/mcp --token-env PI_MCP_KEY.",
            )
        if wishes.url is None:
            entry = self.local(around.command[0], [*around.command[1:], "serve"])
            # What goes with a project names nothing of this person's.
            if self.hands_over is not None and not wishes.project:
                entry.update(self.hands_over(named_variables(around), around.environ))
            return entry
        if not wishes.url.startswith(("http://", "https://")) or any(char.isspace() for char in wishes.url):
            raise failure(
                "usage", "command", None, "--url takes the address of a gateway.", "Such as http://127.0.0.1:8080/mcp."
            )
        if self.remote is None:
            raise failure("usage", "command", None, f"The file of {self.title} takes no addresses.", self.no_remote)
        if wishes.token_env is None:
            return self.remote(wishes.url)
        if self.token is None:
            raise failure(
                "usage",
                "command",
                None,
                f"The file of {self.title} can name no variable for a key.",
                "Leave --token-env out, and write the header into the file yourself.",
            )
        return {**self.remote(wishes.url), **self.token(wishes.token_env)}

    def _ours(self, present: Any, record: _Record) -> bool:
        """Did we write it, as it is there? Without a record: is it exactly an entry as we write them?"""
        if not isinstance(present, dict):
            return False
        if record.digest:
            return _digest({key: present[key] for key in record.members if key in present}) == record.digest
        command, arguments = present.get("command"), present.get("args", [])
        if isinstance(command, list) and command:
            command, arguments = command[0], command[1:]
        if not isinstance(command, str) or not isinstance(arguments, list) or not starts_gateway(present):
            return False
        wanted = self.local(command, arguments)
        if self.hands_over is not None:
            wanted.update({key: present[key] for key in ("env", "env_vars") if _names_only(present.get(key))})
        spellings = (["serve"], [*BY_MODULE, "serve"], ["-m", "pi_mcp", "serve"])  # the last is an earlier version's
        return arguments in spellings and present == wanted

    def _path(self, around: Surroundings, wishes: Wishes) -> Path:
        if not wishes.project:
            return self.place(around)
        if self.project is None:
            raise failure(
                "usage", "command", None, f"{self.title} has no project file here.", "Leave --project out for it."
            )
        return around.cwd / self.project

    def _warnings(self, around: Surroundings, wishes: Wishes, text: str, real: Path) -> list[str]:
        found: list[str] = []
        if not wishes.project and not self.detect(around).present:
            found.append(f"{self.title} was not found on this machine; the entry is for one that will read this file.")
        servers = self._servers(text, real)
        for name, entry in servers.items():
            if name != NAME and starts_gateway(entry):
                found.append(
                    f"`{clean_line(name, 100)}` in the same file starts the gateway, too; one of them is enough."
                )
        if wishes.url is None and around.passing:
            found.append(around.passing)
        if wishes.url is None and not around.serves:
            found.append(
                "`pi-mcp serve` will not start: the gateway's packages are not installed. Install pi-mcp with them, "
                "from its folder: pip install '.[gateway]', or `pipx install --force '.[gateway]'`."
            )
        if wishes.project and wishes.url is None:
            found.append(
                "this file goes with the project and names a program on this machine; for others write "
                '`"command": "pi-mcp"`. pi-mcp itself leaves the entry out when it reads the file.'
            )
        return found

    # The file

    def _servers(self, text: str, real: Path) -> dict[str, Any]:
        shown = clean_line(str(real), 1000)
        if self.syntax == "json":
            value = edit.member_of(text, self.keys, shown)[0]
        else:
            value = toml_edit.parsed(text, shown)
            for key in self.keys:
                value = value.get(key, {}) if isinstance(value, dict) else {}
        return value if isinstance(value, dict) else {}

    def _member(self, text: str, real: Path) -> tuple[Any, tuple[int, int]]:
        shown = clean_line(str(real), 1000)
        if self.syntax == "json":
            return edit.member_of(text, (*self.keys, NAME), shown)
        entry = self._servers(text, real).get(NAME)
        line = next((n for n, one in enumerate(text.splitlines(), 1) if NAME in one and "[" in one), 1)
        return entry, (line, 1)

    def _with(self, text: str, real: Path, entry: Entry) -> str:
        shown, keys = clean_line(str(real), 1000), (*self.keys, NAME)
        if self.syntax == "json":
            return edit.with_member(text, keys, entry, shown)
        return toml_edit.with_table(text, shown, keys, entry)

    def _without(self, text: str, real: Path, made: int) -> str:
        shown = clean_line(str(real), 1000)
        if self.syntax == "json":
            return edit.without_member(text, (*self.keys, NAME), shown, made=made)
        return toml_edit.without_table(text, shown, (*self.keys, NAME))

    def _restored(self, text: str, real: Path, record: _Record) -> str:
        """Without the entry: the very bytes that were there before it, where what we put in is still there whole."""
        without = record.seam.without(text) if record.seam else None
        if without is not None:
            try:
                if self._member(without, real)[0] is None:
                    return without
            except PiMcpError:  # something that the person wrote leans on it
                pass
        return self._without(text, real, record.made)

    def _made(self, text: str, real: Path) -> int:
        """How much around the entry is made with it: objects on the way, and one more for the file itself."""
        if not real.exists():
            return len(self.keys) + 1
        if self.syntax == "toml":
            return 0
        shown = clean_line(str(real), 1000)
        return sum(edit.member_of(text, self.keys[:depth], shown)[0] is None for depth in range(1, len(self.keys) + 1))

    def _shown(self, before: Any, after: Entry) -> tuple[str, ...]:
        if not isinstance(before, dict):
            return self._whole("+", after)
        old = {key: value for key, value in before.items() if after.get(key) != value}
        new = {key: value for key, value in after.items() if before.get(key) != value}
        members = _members if self.syntax == "json" else _toml_members
        return (f"in `{'.'.join((*self.keys, NAME))}`:", *members("-", old), *members("+", new))

    def _whole(self, mark: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
        """The entry as it is written, a line each: what a person may look for in the file afterwards."""
        if self.syntax == "toml":
            return (f"{mark} {toml_edit.header((*self.keys, NAME))}", *_toml_members(mark, entry))
        where = (f"in `{'.'.join(self.keys)}`:",) if mark == "+" else ()
        return (*where, f'{mark} "{NAME}": {{', *_members(mark, entry, "  "), f"{mark} }}")


@dataclass(frozen=True, slots=True)
class _Record:
    """What we wrote into one file: a sum over our members, their names, and what else came into being with it."""

    digest: str = ""
    members: tuple[str, ...] = ()
    version: str | None = None
    made: int = 0
    folders: int = 0
    """Folders above the file that were not there."""
    seam: Seam | None = None

    @classmethod
    def read(cls, name: str, real: Path, around: Surroundings) -> _Record:
        """An empty one for what is missing or damaged: then the entry itself has to tell."""
        try:
            value = json.loads(files.read_private(record_place(name, real, around), 65536) or b"{}")
            return cls(
                str(value["sha256"]),
                tuple(map(str, value["members"])),
                clean_line(str(value["version"]), 40),
                int(value["made"]),
                min(max(int(value.get("folders", 0)), 0), 8),
                Seam.from_json(value.get("seam"), NAME),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return cls()

    def change(self, new: _Record | None, name: str, real: Path, around: Surroundings) -> Change:
        path = record_place(name, real, around)
        data = None
        if new is not None:
            about: dict[str, Any] = {"sha256": new.digest, "members": list(new.members), "version": new.version}
            about |= {"made": new.made, "folders": new.folders}
            if new.seam is not None:
                about["seam"] = new.seam.to_json()
            data = as_record({"path": str(real), **about})
        return Change(path, read(path), data, quiet=True)


def record_place(name: str, real: Path, around: Surroundings) -> Path:
    """Where it is kept what `name` wrote into the file."""
    which = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return around.state / "installed" / f"{name}-{which}.json"


# Values


def _empty(text: str) -> bool:
    return not text.strip(" \t\r\n{}\ufeff")


def _missing(path: Path) -> int:
    """How many folders above the file have to be made for it."""
    return next((n for n, folder in enumerate(path.parents) if folder.exists()), 0)


def _digest(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _others(present: Any, record: _Record) -> Entry:
    """Members of our entry that are not ours: the person's, or the client's."""
    if not isinstance(present, dict) or not record.digest:
        return {}
    return {key: value for key, value in present.items() if key not in record.members}


def _covers(present: Any, wanted: Entry | None) -> bool:
    """Does the entry say what we would write, and perhaps more?"""
    return isinstance(present, dict) and wanted is not None and {**present, **wanted} == present


def _names_only(value: Any) -> bool:
    """Are these variables by name, as we write them: a list of names, or each name with its own `$NAME`?"""
    if isinstance(value, dict):
        return all(value[name] == f"${name}" for name in value)
    return isinstance(value, list) and all(isinstance(name, str) and name.isidentifier() for name in value)


def _masked(key: str, value: Any) -> Any:
    """The value as it may be shown. The name of a variable is no secret, and has to be checked."""
    if key in ("url", "serverUrl", "httpUrl") and isinstance(value, str):
        return shown_url(value)
    names_variable = key.endswith("_env_var") and isinstance(value, str) and value.isidentifier()
    if key in ("command", "args", "type", "enabled") or _names_only(value):
        return value
    if key == "headers" and isinstance(value, dict) and all(_REFERENCE.fullmatch(str(one)) for one in value.values()):
        return value
    if names_variable and shown_text(value) == value:
        return value
    try:
        return json.loads(shown_entry({key: value}))[key]
    except ValueError:  # cut
        return MASK


def _members(mark: str, entry: Mapping[str, Any], indent: str = "") -> list[str]:
    shown = [
        clean_line(f"{json.dumps(key)}: {json.dumps(_masked(key, value), ensure_ascii=False)}", 1000)
        for key, value in entry.items()
    ]
    return [f"{mark} {indent}{line}{',' if indent and n < len(shown) else ''}" for n, line in enumerate(shown, 1)]


def _toml_members(mark: str, entry: Mapping[str, Any]) -> list[str]:
    return [f"{mark} {clean_line(toml_edit.member(key, _masked(key, value)), 1000)}" for key, value in entry.items()]


# The person's file


def text_of(path: Path, *, follow: bool = True) -> tuple[str, Path]:
    """The file's text and where it really is. A person's own link into a folder of settings is followed.

    In a project nothing is followed: there a link may be somebody else's.
    """
    real = path
    if path.is_symlink():
        real = path.resolve()
        mine = not hasattr(os, "getuid") or (real.exists() and real.stat().st_uid == os.getuid())
        if not follow or not real.is_file() or not mine:
            raise failure(
                "configuration_invalid",
                "command",
                None,
                f"{clean_line(str(path), 1000)} is a symbolic link that is not followed; nothing was written.",
                "Edit the file that it points to." if real.exists() else "It leads nowhere: correct or remove it.",
            )
    data = read(real)
    try:
        return ("" if data is None else data.decode()), real
    except UnicodeDecodeError as error:
        head = (data or b"")[: error.start]
        line, column = head.count(b"\n") + 1, error.start - head.rfind(b"\n")
        raise failure(
            "configuration_invalid",
            "command",
            None,
            f"{clean_line(str(real), 1000)}, line {line}, column {column}: This is not UTF-8 text. "
            "The file was not written to.",
            "Save it in UTF-8, then repeat this.",
        ) from None


def _bytes(text: str, real: Path) -> bytes | None:
    return text.encode() if real.exists() else None


def _through(path: Path, real: Path) -> tuple[str, ...]:
    if path == real:
        return ()
    return (f"{clean_line(str(path), 1000)} is a link to {clean_line(str(real), 1000)}; the link stays.",)
