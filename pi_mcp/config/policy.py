"""Which tools of a server may be registered, which calls a person is asked about, and what a tool does (DESIGN §9).

Comes in: a server's definition, an original tool name, the sensitive words in force. Goes out: yes, no, or
the reason. It asks nobody, calls nothing and knows no connection; where it cannot tell, it denies.

| level     | registered                                              | a call is confirmed           |
| --------- | ------------------------------------------------------- | ----------------------------- |
| trusted   | what includeTools and excludeTools leave                | never                         |
| verified  | the same; a sensitive one only if includeTools names it | once per tool and session     |
| untrusted | the same without any sensitive one                      | every time                    |

includeTools *names* a tool by its own name or by a pattern with a letter or digit in it: `delete_repo` and
`delete_*` name delete_repo, `*` and `*_*` name nothing, because they were not written with that tool in mind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pi_mcp.config.definition import Configuration, ServerDefinition
from pi_mcp.errors import failure
from pi_mcp.text import clean_line, clean_metadata

Admission = Literal["ok", "filtered", "sensitive"]
Confirmation = Literal["never", "once", "every"]
Action = Literal["read", "write"]

_READ: frozenset[Action] = frozenset({"read"})
_WRITE: frozenset[Action] = frozenset({"write"})
_BOTH: frozenset[Action] = frozenset({"read", "write"})

# fmt: off
SENSITIVE_WORDS = frozenset({
    "delete", "remove", "drop", "destroy", "purge", "wipe", "truncate",
    "exec", "execute", "eval", "shell", "bash", "command", "sudo", "kill", "terminate",
    "password", "secret", "token", "credential",
    "pay", "payment", "transfer",
})
# fmt: on
"""Words that make a tool sensitive when one of them is a whole part of its name."""

_SEPARATORS = re.compile(r"[\W_]+")


def split_name(tool: str) -> list[str]:
    """The parts of a name, lower case: `deleteRepo`, `DELETE-repo` and `delete/repo` give delete, repo.

    Anything but letters and digits separates; so do a change from lower to upper case, the end of an acronym
    (`DBDrop`: db, drop), the edge between letters and digits (`drop2`: drop, 2), and one between a script
    with capitals and one without. Full-width and other compatibility forms count as the plain letters, and invisible
    characters are not there.
    """
    return [part for chunk in _chunks(tool) for part in _split_case(chunk)]


def sensitive_words(overrides: object = None) -> frozenset[str]:
    """The words in force after `sensitiveTools` of the person's own file: `word` adds, `!word` removes.

    None means that the field is absent. A word of several parts (`force_push`) matches these parts in a row.
    Raises ConfigurationError when it is not a list of such strings: the caller then sets `deny_all`.
    """
    words = set(SENSITIVE_WORDS)
    if overrides is None:
        return frozenset(words)
    if not isinstance(overrides, Sequence) or isinstance(overrides, str | bytes):
        raise _unreadable("is not a list of words")
    for index, item in enumerate(overrides):
        if not isinstance(item, str):
            raise _unreadable(f"holds something that is not a string, at index {index}")
        word = _phrase(item.removeprefix("!"))
        if not word:
            raise _unreadable(f"holds an entry without a word, at index {index}")
        if item.startswith("!"):
            words.discard(word)
        else:
            words.add(word)
    return frozenset(words)


def is_sensitive(tool_name: str, configuration: Configuration) -> bool:
    """Does a whole part of the name spell a sensitive word? `tokens` and `deleted` do not.

    With `deny_all` every name is sensitive. A stretch between separators that spells a word whatever its
    capitals (`PassWord`) counts too: capitals must not be a way around the list.
    """
    if configuration.deny_all:
        return True
    words = configuration.sensitive
    phrase = f" {_phrase(tool_name)} "
    return any(f" {word} " in phrase for word in words) or any(
        chunk.casefold() in words for chunk in _chunks(tool_name)
    )


def matches(pattern: str, name: str) -> bool:
    """Does a tool pattern cover the whole name? `*` is any run of characters; case counts.

    Takes time linear in the pattern for each place of the name, whatever the number of stars.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for piece in middle:
        # The leftmost place leaves the most room for the pieces that follow.
        found = name.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True


def names_tool(definition: ServerDefinition, tool_name: str) -> bool:
    """Was includeTools written with this tool in mind, and is it not excluded? See the module's docstring."""
    return any(
        matches(pattern, tool_name) and (pattern == tool_name or any(map(str.isalnum, pattern)))
        for pattern in definition.include_tools or ()
        if pattern.strip("*")
    ) and not _excluded(definition, tool_name)


def admits(definition: ServerDefinition, tool_name: str, configuration: Configuration) -> Admission:
    """May the tool be registered? `filtered`: by include/exclude; `sensitive`: by the trust level."""
    included = definition.include_tools is None or any(
        matches(pattern, tool_name) for pattern in definition.include_tools
    )
    if not included or _excluded(definition, tool_name):
        return "filtered"
    if definition.trust == "trusted" or not is_sensitive(tool_name, configuration):
        return "ok"
    if definition.trust == "verified" and names_tool(definition, tool_name):
        return "ok"
    return "sensitive"


def always_loads(definition: ServerDefinition, tool_name: str) -> bool:
    """Is the tool there from the start, without a search? Whether it may be is `admits`'s matter."""
    chosen = definition.always_load
    return chosen if isinstance(chosen, bool) else any(matches(pattern, tool_name) for pattern in chosen)


def capabilities(definition: ServerDefinition) -> dict[str, Any]:
    """What is declared to a server, so that it may ask for it: nothing to one that is not trusted (DESIGN §9)."""
    if definition.trust == "untrusted":
        return {}
    declared: dict[str, Any] = {"elicitation": {"form": {}}}
    if definition.trust == "trusted":
        declared["roots"] = {}
    return declared


def confirmation(definition: ServerDefinition) -> Confirmation:
    """How often a call of one tool is put to the person: a level that is not known counts as untrusted."""
    if definition.trust == "trusted":
        return "never"
    return "once" if definition.trust == "verified" else "every"


def needs_confirmation(
    definition: ServerDefinition, tool_name: str, read_only_hint: bool, arguments: Mapping[str, Any] | None = None
) -> bool:
    """Is this call asked about? `confirmation` says whether once per session or every time.

    A call that only reads by the person's own word (`access`) is not, for a verified server. Its `readOnlyHint`
    decides nothing: from a server that is not trusted it is a claim, and the tool is a write (DESIGN §9).
    """
    how_often = confirmation(definition)
    if how_often == "once":
        return "write" in actions(definition, tool_name, read_only_hint, arguments)
    return how_often != "never"


def actions(
    definition: ServerDefinition, tool_name: str, read_only_hint: object, arguments: Mapping[str, Any] | None = None
) -> frozenset[Action]:
    """What a call of the tool does: `read`, `write`, or both.

    In this order: a `write` rule of `access` without an argument; its `readOnly`; the `readOnlyHint` (exactly True)
    of a trusted server; all else is a write. A `write` rule with an argument adds `write` to a tool that only reads,
    for calls that give that argument, whatever its value. Without `arguments`: what the tool does at the least.
    """
    rules = definition.access
    fitting = [rule for rule in rules.write if matches(rule.tool, tool_name)]
    if any(rule.argument is None for rule in fitting):
        return _WRITE
    if not any(matches(pattern, tool_name) for pattern in rules.read_only) and not (
        definition.trust == "trusted" and read_only_hint is True
    ):
        return _WRITE
    if arguments is not None and any(rule.argument in arguments for rule in fitting):
        return _BOTH
    return _READ


def idle_rules(definition: ServerDefinition, tools: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each name in the entry that none of `tools` has, and for each argument that its tool has not.

    `tools` is all that the server offers: input schemas by name. A pattern with `*` may be there for what is to come; a
    name that is nobody's is a slip, and a rule of `access` or `excludeTools` that covers nothing protects nobody.
    """
    rules: list[tuple[str, Sequence[str]]] = [
        ("includeTools", definition.include_tools or ()),
        ("excludeTools", definition.exclude_tools),
        ("alwaysLoad", () if isinstance(definition.always_load, bool) else definition.always_load),
        ("access.readOnly", definition.access.read_only),
        ("access.write", [rule.tool for rule in definition.access.write]),
    ]
    found = [
        f"`{field}` names {clean_line(name, 80)}, and the server has no such tool."
        for field, names in rules
        for name in dict.fromkeys(names)
        if "*" not in name and name not in tools
    ]
    for rule in definition.access.write:
        schemas = [schema for name, schema in tools.items() if rule.argument is not None and matches(rule.tool, name)]
        known = [schema.get("properties") for schema in schemas]
        if schemas and all(isinstance(names, Mapping) and rule.argument not in names for names in known):
            found.append(
                f"`access.write` waits for an argument {clean_line(str(rule.argument), 80)}, which "
                f"{clean_line(rule.tool, 80)} does not have."
            )
    return found


def unattended(definition: ServerDefinition, tool_name: str) -> None:
    """Return where a call that wants a confirmation may go out with nobody there; raises Refused otherwise."""
    if not headless_allows(definition, tool_name):
        raise failure(
            "refused",
            "call",
            definition.name,
            f"A call of {clean_line(tool_name)} wants a person's confirmation ({definition.trust} server), and nobody "
            "can be asked.",
            "Name the tool in includeTools, or raise the server's trust.",
        )


def headless_allows(definition: ServerDefinition, tool_name: str) -> bool:
    """May a call that would be asked about go out with nobody to ask? Only when includeTools names the tool."""
    return names_tool(definition, tool_name)


def _excluded(definition: ServerDefinition, tool_name: str) -> bool:
    return any(matches(pattern, tool_name) for pattern in definition.exclude_tools)


def _chunks(tool: str) -> list[str]:
    plain = clean_metadata(tool)
    if not plain.isascii():
        import unicodedata  # a megabyte that a name of plain letters does not need

        plain = unicodedata.normalize("NFKC", plain)
    return [chunk for chunk in _SEPARATORS.split(plain) if chunk]


def _split_case(chunk: str) -> list[str]:
    parts: list[str] = []
    start = 0
    for index in range(1, len(chunk)):
        before, here = chunk[index - 1], chunk[index]
        after = chunk[index + 1] if index + 1 < len(chunk) else ""
        if (
            before.isdigit() != here.isdigit()
            or _has_case(before) != _has_case(here)
            or (here.isupper() and not before.isupper())
            or (here.isupper() and before.isupper() and after.islower())
        ):
            parts.append(chunk[start:index])
            start = index
    return [part.casefold() for part in [*parts, chunk[start:]]]


def _has_case(char: str) -> bool:
    return char.lower() != char.upper()


def _phrase(name: str) -> str:
    return " ".join(split_name(name))


def _unreadable(what: str) -> Exception:
    return failure(
        "configuration_invalid",
        "configure",
        None,
        f"`sensitiveTools` {what}, so the policy cannot be read: every tool of a server that is not trusted "
        "counts as sensitive.",
        'Write a list of words, for example ["publish", "!token"].',
    )
