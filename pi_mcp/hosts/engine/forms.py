"""A server's form for a host without forms: one small question per field.

Comes in: a flat JSON Schema object and a host that can ask yes or no, one of several, or a line. Goes out: values of
the right types, or None as soon as one question is dismissed. It keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.hosts.terminal import form
from pi_mcp.text import clean_line, clean_metadata

if TYPE_CHECKING:
    from pi_mcp.hosts.engine.person import Questions

ATTEMPTS = 3
"""How often a line that does not fit is asked for again."""
LEAVE_OUT = "(leave it out)"


class _Dismissed(Exception):
    """The person has closed a question."""


async def ask_fields(host: Questions, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
    """Values for `schema`, or None when the person closed one of the questions."""
    fields = form.fields_of(schema)
    text = clean_metadata(message)
    if not fields:
        return {} if await host.confirm(text, "") else None
    values: dict[str, Any] = {}
    try:
        for place, item in enumerate(fields):
            # The server's message stands over the first question; the others know what they belong to.
            value = await _ask(host, item, text if place == 0 else clean_line(text, 60))
            if value is not form.MISSING:
                values[item.name] = value
    except _Dismissed:
        return None
    return values


async def _ask(host: Questions, item: form.Field, over: str) -> Any:
    about = ": ".join(part for part in (item.title or item.heading, item.description) if part)
    question = f"{over}\n{about}"
    if item.kind == "yes/no":
        words = ["Yes", "No"] if item.default is True else ["No", "Yes"]
        return await _choose(host, question, [form.Choice(word == "Yes", word) for word in words], item)
    if item.choices and not item.several:
        return await _choose(host, question, list(item.choices), item)
    if item.several:
        labels = ", ".join(choice.label for choice in item.choices)
        question = f"{question}\nAny of: {labels}; with commas between."
    elif item.kind != "text" and item.title:  # the heading of a field without a title has it
        question = f"{question} ({item.kind})"
    if item.default is not form.MISSING:
        question = f"{question}\nNothing typed is {form.show(item.default)}."
    problem = ""
    for _ in range(ATTEMPTS):
        line = await host.input(f"{problem}{question}")
        if line is None:
            raise _Dismissed
        try:
            return form.read(item, line)
        except form.Invalid as invalid:
            problem = f"{invalid}\n"
    raise _Dismissed


async def _choose(host: Questions, question: str, choices: list[form.Choice], item: form.Field) -> Any:
    labels = {choice.label: choice.value for choice in choices}
    offered = [*labels, *([] if item.required else [LEAVE_OUT])]
    chosen = await host.select(question, offered)
    if chosen is None:
        raise _Dismissed
    return form.MISSING if chosen == LEAVE_OUT and chosen not in labels else labels[chosen]
