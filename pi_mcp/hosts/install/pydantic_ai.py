"""pydantic-ai and clai: a library, so there is nothing to write, only something to say."""

from __future__ import annotations

from pi_mcp.hosts.install.found import of_python
from pi_mcp.hosts.install.plan import Found, Installed, Kind, Plan, Wishes
from pi_mcp.hosts.install.surroundings import Surroundings


class PydanticAi:
    name = "pydantic-ai"
    title = "pydantic-ai and clai"
    kind: Kind = "library"

    def detect(self, around: Surroundings) -> Found:
        return of_python(around, "clai", "clai")

    def installed(self, around: Surroundings) -> Installed:
        del around
        return Installed("none")

    def install(self, around: Surroundings, wishes: Wishes) -> Plan:
        del around, wishes
        steps = (
            "Nothing is written for it: it is a toolset for your own program, in the environment of that program.",
            "1. From pi-mcp's folder: pip install '.[chat]'",
            "2. In your_agent.py:",
            "     from pydantic_ai import Agent",
            "     from pi_mcp.hosts.pydantic_ai import PiMcpToolset",
            '     agent = Agent("anthropic:claude-sonnet-4-5", toolsets=[PiMcpToolset()])',
            "3. clai --agent your_agent:agent",
        )
        return Plan(self.name, self.title, "install", next_steps=steps)

    def uninstall(self, around: Surroundings, wishes: Wishes) -> Plan:
        del around, wishes
        return Plan(self.name, self.title, "uninstall", next_steps=("Nothing was written for it.",))
