"""`/mcp get SERVER`: everything known about one server, its last words on stderr included.

Comes in: a server's name. Goes out: text without secret values. It contacts nothing.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.commands.status import age, moment
from pi_mcp.config import ServerDefinition, masking, resolve
from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.text import clean_line, quoted, redact

_LOG_LINES = 20
_HERE = re.compile(r"^`/mcp get [^`]*` shows (?:what it wrote to stderr|the server's own output|more)(?:\.$|; )")


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if len(words) != 1:
        raise failure("usage", "command", None, "Say which server.", "Usage: /mcp get SERVER.")
    plugin = conversation.plugin
    entry = conversation.entry(words[0])
    status = next(status for status in conversation.statuses() if status.name == entry.name)
    place = f"defined in {entry.source.path}:{entry.source.line}" if entry.source.path else "given by the program"
    lines = [f"{entry.name}: {status.state.replace('_', ' ')}", f"  {clean_line(place, 400)}"]
    if entry.definition is not None:
        lines.extend(f"  {line}" for line in described(entry.definition))
    if entry.diagnostic is not None and entry.diagnostic != status.error:
        lines.append(f"  {entry.diagnostic.line()}")
    lines.extend(f"  Note: {note}" for note in status.notes)
    if status.error is not None:
        lines.append(f"  {_without_pointer_here(status.error).line()}")
    if entry.state == "ready":
        lines.extend(f"  {line}" for line in _login(conversation, entry.definition))
        lines.extend(f"  {line}" for line in _live(conversation, entry.name))
        if status.tools is not None:
            lines.append(f"  {status.tools} tools, {status.filtered} after filters, {status.loaded} loaded")
        if status.cached is not None:
            lines.append(f"  catalog is {age(status.cached)} old")
        log = plugin.connections.get(entry.name).log
        tail = log.lines()[-_LOG_LINES:]
        if log.noise:
            what = "line on its output was no message and was"
            if log.noise > 1:
                what = "lines on its output were no messages and were"
            lines.append(f"  {log.noise} {what} skipped")
        if tail:
            lines.append("  Last log lines:")
            lines.extend(f"    {clean_line(line, 400)}" for line in tail)
    return CommandAnswer("\n".join(lines))


def _without_pointer_here(diagnostic: Diagnostic) -> Diagnostic:
    """Less the hint's words that this command shows more: it does so just below."""
    rest = _HERE.sub("", diagnostic.hint or "")
    return replace(diagnostic, hint=rest[:1].upper() + rest[1:] or None)


def _login(conversation: Conversation, definition: ServerDefinition | None) -> list[str]:
    """What is stored of a login, as the index tells it: no keyring is opened for it."""
    if definition is None or definition.url is None or definition.oauth is False:
        return []
    plugin = conversation.plugin
    try:
        url = resolve(definition, plugin.configuration).url or ""
    except PiMcpError:
        return []
    found = plugin.credentials.entry(definition.name, url)
    if found is None:
        other = plugin.credentials.elsewhere(definition.name, url)
        if other is None:
            return []
        return [f"login: none for this name and address; one of {other.server} for {other.url_shown} is stored"]
    place = "in the keyring" if found.place == "keyring" else "in an encrypted file"
    lines = [f"login at {found.issuer}, stored {place} {moment(found.saved_at)}"]
    if found.scopes:
        lines.append(f"scopes {clean_line(' '.join(found.scopes), 400)}")
    if found.refused:
        lines.append(f"the login is not accepted any more: `/mcp auth {quoted(definition.name)}` makes a new one")
    elif found.expires_at is None:
        lines.append("its end is not known")
    else:
        left = found.expires_at - time.time()
        ends = f"ends in {age(left)}" if left > 0 else f"ended {moment(found.expires_at)}"
        lines.append(f"the token {ends}" + (" and is renewed by itself" if found.renewable else ""))
    return lines


def _live(conversation: Conversation, name: str) -> list[str]:
    connection = conversation.plugin.connections.get(name)
    lines = []
    if connection.info is not None:
        info = connection.info
        lines.append(f"speaks {clean_line(info.protocol_version, 40)} ({info.era})")
        lines.append(redact(f"calls itself {clean_line(info.name, 80)} {clean_line(info.version, 40)}"))
    if connection.last_success is not None:
        lines.append(f"last success {moment(connection.last_success, time.time())}")
    return lines


def described(definition: ServerDefinition) -> list[str]:
    """The definition as written; what may be a secret is `***` (`pi_mcp.config.masking`)."""
    lines = [f"transport {definition.transport}, trust {definition.trust}, protocol {definition.protocol}"]
    if definition.command is not None:
        words = masking.shown_words([definition.command, *definition.args])
        lines.append("command " + clean_line(shlex.join(words), 1000))
        if definition.cwd is not None:
            lines.append(f"cwd {clean_line(definition.cwd, 400)}")
        lines.extend(_table("env", definition.env))
        if definition.inherit_env:
            names = definition.inherit_env
            lines.append("inherits " + ("the whole environment" if names is True else ", ".join(names)))  # type: ignore[arg-type]
    if definition.url is not None:
        lines.append(f"url {masking.shown_url(definition.url)}")
        lines.extend(_table("header", definition.headers))
        if definition.oauth is not None:
            lines.append("oauth " + ("off" if definition.oauth is False else "on"))
    if definition.description:
        lines.append(f"description {clean_line(definition.description)}")
    if definition.keywords:
        lines.append(f"keywords {clean_line(', '.join(definition.keywords))}")
    if definition.include_tools is not None:
        lines.append(f"includeTools {clean_line(', '.join(definition.include_tools) or '(none)', 400)}")
    if definition.exclude_tools:
        lines.append(f"excludeTools {clean_line(', '.join(definition.exclude_tools), 400)}")
    if definition.access.read_only:
        lines.append(f"access.readOnly {clean_line(', '.join(definition.access.read_only), 400)}")
    if definition.access.write:
        rules = (rule.tool + (f" with {rule.argument}" if rule.argument else "") for rule in definition.access.write)
        lines.append(f"access.write {clean_line(', '.join(rules), 400)}")
    if definition.always_load:
        always = definition.always_load
        lines.append("alwaysLoad " + ("all" if always is True else clean_line(", ".join(always), 400)))  # type: ignore[arg-type]
    lines.append(
        f"limits: start {definition.startup_timeout:g} s, request {definition.timeout:g} s, "
        f"silence in a call {definition.tool_timeout:g} s"
    )
    return lines


def _table(kind: str, values: Mapping[str, str]) -> list[str]:
    return [f"{kind} {clean_line(name, 80)}={masking.shown_value(value)}" for name, value in values.items()]


COMMAND = Command("get", "get SERVER", "One server in full: definition, protocol, last error, log", run, server_names)
