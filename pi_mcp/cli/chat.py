"""`pi-mcp chat`: the built-in terminal host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pi_mcp.cli.common import Add


def register(add: Add) -> None:
    from pi_mcp.hosts import terminal

    chat = add("chat", "talk to an agent, or search and call by hand, in this terminal", terminal.main, as_json=False)
    terminal.add_arguments(chat)
