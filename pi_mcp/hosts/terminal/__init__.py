"""`pi-mcp chat`: the built-in terminal host.

Comes in: the options of the command line. Goes out: a conversation, and the process's exit code. It uses only what
any other host gets: Plugin, Session and Host. Importing it loads nothing heavy.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path

from pi_mcp.errors import failure


@dataclass(frozen=True)
class ChatOptions:
    """What the command line said. `resume` is None for a new chat, "" for the latest one, or an id."""

    model: str | None = None
    base_url: str | None = None
    prompt: str | None = None
    resume: str | None = None
    demo: bool = False
    config: Path | None = None
    trust_project: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pi-mcp chat`, besides `--config` and `--trust-project`."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="be an agent with this model: openai:NAME, anthropic:NAME, or any name with --base-url; "
        "without it you search and call by hand",
    )
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="the model's endpoint, OpenAI-compatible unless the model is anthropic:NAME; the key comes from "
        "PI_MCP_API_KEY, OPENAI_API_KEY or ANTHROPIC_API_KEY",
    )
    parser.add_argument("-p", "--prompt", metavar="PROMPT", help="run one turn, print its answer only, and leave")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="ID", help="go on with the latest chat of this directory, or with ID"
    )
    parser.add_argument(
        "--demo", action="store_true", help="use the reference servers of the extra `demo`; needs no configuration"
    )


def options_of(namespace: argparse.Namespace) -> ChatOptions:
    """The parsed command line as options; raises ConfigurationError `usage` where they do not fit together."""
    options = ChatOptions(
        namespace.model,
        namespace.base_url,
        namespace.prompt,
        namespace.resume,
        namespace.demo,
        getattr(namespace, "config", None),
        getattr(namespace, "trust_project", False),
    )
    if options.prompt is not None and not options.prompt.strip():
        raise failure("usage", "command", None, "The prompt is empty.", "Write it after -p, in quotes.")
    if options.base_url is not None and options.model is None and options.resume is None:
        raise failure("usage", "command", None, "--base-url needs a model.", "Add --model NAME.")
    if options.demo and options.config is not None:
        raise failure("usage", "command", None, "--demo and --config exclude each other.", "Leave one out.")
    return options


def main(namespace: argparse.Namespace) -> int:
    """Run `pi-mcp chat`; the exit code of DESIGN §10. Raises PiMcpError for what the options got wrong."""
    return asyncio.run(chat(options_of(namespace)))


async def chat(options: ChatOptions) -> int:
    """Run a chat until it is left, or one turn with `options.prompt`; the exit code."""
    from pi_mcp.hosts.terminal.app import Application

    return await Application(options).run()
