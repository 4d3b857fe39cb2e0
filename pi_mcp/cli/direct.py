"""One configured HTTP server, asked with the standard library alone: what a single call does in place of the SDK.

Comes in: a configuration and a server's definition. Goes out: the tool as it is offered, the result as sent, or the
same diagnostics as the long way gives. It decides nothing about trust, filters or schemas by itself; where it cannot
tell, or a login has to be renewed, it raises `LongWay` while nothing was executed yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pi_mcp import files
from pi_mcp.catalog.records import Tool
from pi_mcp.config import policy
from pi_mcp.config.resolve import resolve
from pi_mcp.errors import PiMcpError, error_of, failure
from pi_mcp.http_client import MCPClientError, MCPHTTPClient, StatelessMCPClient
from pi_mcp.http_client.client import HARD_CAP
from pi_mcp.http_client.conversation import FINAL_KINDS
from pi_mcp.text import clean_line
from pi_mcp.tools.names import native_name, without_server
from pi_mcp.tools.plain import plainly_usable

if TYPE_CHECKING:
    from pi_mcp.config import Configuration, ResolvedServer, ServerDefinition
    from pi_mcp.errors import Operation
    from pi_mcp.http_client.conversation import Era
    from pi_mcp.search import SearchTool

CLOSING = 1.0
"""Seconds that the end of the session may take."""
FINAL = FINAL_KINDS | {"timeout"}
"""After these the other protocol would fare no better."""

Show = Callable[[float, float | None, str | None], None]


class LongWay(Exception):
    """This has to be asked by way of the plugin: every call of this `server`, or this one. Nothing was executed."""

    def __init__(self, *, server: bool = True) -> None:
        super().__init__()
        self.server = server


class DirectServer:
    """One server's session, opened at its first use. For one thread."""

    def __init__(self, configuration: Configuration, definition: ServerDefinition, *, stateless: bool = False) -> None:
        """Resolves the definition, which runs its secret commands. Raises ConfigurationError, or LongWay."""
        if definition.transport != "http":
            raise LongWay
        self.configuration = configuration
        self.definition = definition
        self._stateless = stateless
        unresolved = resolve(definition, configuration)
        self._asks_commands = bool(unresolved.commands)
        self._resolved = _resolved(unresolved)
        self._headers, self._credential_id = self._login()
        self._client: MCPHTTPClient | StatelessMCPClient | None = None
        self._kept: list[Tool] | None = None
        self._kept_era: Era | None = None
        self._seen: list[Tool] = []
        """What the last listing had, as far as it was read."""

    def _login(self) -> tuple[dict[str, str], str | None]:
        from pi_mcp.auth.at_hand import login_at_hand

        at_hand = login_at_hand(self._resolved, self._resolved.environ)
        if at_hand.headers is None:
            raise LongWay
        own = {name: secret.reveal() for name, secret in self._resolved.headers.items()}
        return {**own, **at_hand.headers}, at_hand.credential_id

    # tools

    def tool(self, name: str) -> Tool:
        """The tool of that original or native name: from the kept catalog, else from the server's own listing.

        Raises PiMcpError `not_found` where there is none, and LongWay where it may not be called: that says why.
        """
        found = next((tool for tool in self._known() if _is_called(tool, name)), None)
        if found is None:
            found = next((tool for tool in self._listed() if _is_called(tool, name)), None)
        if found is None:
            self._missing(name)
        if self._stateless:
            return found
        if policy.admits(self.definition, found.name, self.configuration) != "ok":
            raise LongWay(server=False)
        if plainly_usable(found.wire.get("inputSchema")):
            return found
        from pi_mcp.tools.schema import Quarantined, model_schema

        try:
            model_schema(found.wire.get("inputSchema"))
        except Quarantined:
            raise LongWay(server=False) from None
        return found

    def _missing(self, name: str) -> NoReturn:
        from pi_mcp.search.document import search_tool
        from pi_mcp.search.names import NameTable

        server = self.definition.name
        listed = [search_tool(tool, native="") for tool in sorted(self._seen, key=lambda tool: tool.name)]
        asked = without_server(name, server)
        found = NameTable(listed).close(asked, 5, self._offers)
        close = [tool if self._stateless else f"{server}.{tool}" for _, tool in found]
        if self._stateless and not close:
            import difflib

            close = difflib.get_close_matches(name, [tool.name for tool in self._seen], 5, 0.5)
        hint = "Look at the server's list." if self._stateless else "Search for it with other words."
        if close:
            hint = f"Close names: {clean_line(', '.join(close), 400)}."
        shown = clean_line(name if self._stateless else f"{server}.{asked}", 100)
        raise failure("not_found", "load", None, f"No tool is called {shown!r}.", hint)

    def _offers(self, tool: SearchTool) -> bool:
        return self._stateless or policy.admits(self.definition, tool.name, self.configuration) == "ok"

    def _known(self) -> list[Tool]:
        """The kept catalog's tools; none where nothing was ever kept here."""
        if self._kept is None:
            self._kept = []
            if not self._stateless and (files.cache_dir() / "catalogs" / "key").exists():
                from pi_mcp.catalog.store import CatalogStore

                catalog = CatalogStore(credential_id=lambda _: self._credential_id).load(self._resolved)
                if catalog is not None:
                    self._kept, self._kept_era = list(catalog.tools), _era(catalog.era)
        return self._kept

    def _listed(self) -> Iterator[Tool]:
        """Page by page: a tool on the first page need not wait for the others."""
        client = self._opened()
        self._seen.clear()
        with self._explaining("list"):
            for page in client.tool_pages():
                for wire in page:
                    self._seen.append(Tool(self.definition.name, wire))
                    yield self._seen[-1]

    # calls

    def open(self) -> None:
        """Have a session; a call opens one itself where there is none. Raises as `call`; nothing was executed."""
        self._opened()

    def call(self, tool: Tool, arguments: Mapping[str, Any], show: Show | None = None) -> dict[str, Any]:
        """The result in wire form, a tool's own error included. Raises PiMcpError; LongWay after a 401 that a new
        login or header could mend.

        A 404 for the session proves that nothing ran: the call is sent once more, in a new one.
        """
        for last in (self._stateless, True):
            client = self._opened()
            with self._explaining("call"):
                try:
                    return client.call_tool(
                        tool.name,
                        arguments,
                        timeout=self.definition.tool_timeout,
                        schema=tool.input_schema,
                        on_progress=show or _ignored,
                    )
                except MCPClientError as error:
                    if error.kind == "tool_error" and error.result is not None:
                        return error.result
                    if last or error.kind != "session_lost" or error.executed != "no":
                        raise
            self.close()
        raise AssertionError("the last attempt returns or raises")

    def _opened(self) -> MCPHTTPClient | StatelessMCPClient:
        if self._client is None:
            era: Era | None = "legacy" if self.definition.protocol == "legacy" else self._kept_era
            try:
                self._client = self._open(era)
            except MCPClientError as error:
                # A remembered outcome that fails once is forgotten.
                if era is None or self.definition.protocol == "legacy" or error.kind in FINAL or error.status == 401:
                    raise self._explained(error, "connect") from None
                with self._explaining("connect"):
                    self._client = self._open(None)
        return self._client

    def _open(self, era: Era | None) -> MCPHTTPClient | StatelessMCPClient:
        definition = self.definition
        kind = StatelessMCPClient if self._stateless else MCPHTTPClient
        client = kind(
            self._resolved.url or "",
            headers=self._headers,
            timeout=definition.timeout,
            connect_timeout=max(0.05, definition.startup_timeout * 0.9),
            environ=self._resolved.environ,
            era=era,
            capabilities=policy.capabilities(definition),
            on_request=self._answer,
        )
        if isinstance(client, MCPHTTPClient):
            try:
                client.initialize(timeout=definition.startup_timeout)
            except BaseException:
                with contextlib.suppress(MCPClientError):
                    client.close(timeout=CLOSING)
                raise
        return client

    def _answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What a server may ask with nobody there: a form is declined, the working directory is told to a trusted
        one (DESIGN §9)."""
        del params
        declared = policy.capabilities(self.definition)
        if method == "elicitation/create" and "elicitation" in declared:
            return {"action": "decline"}
        if method == "roots/list" and "roots" in declared:
            folder = self.configuration.cwd.absolute()
            return {"roots": [{"uri": folder.as_uri(), "name": folder.name or str(folder)}]}
        return None

    def close(self) -> None:
        """End the session, within about a second; nothing that goes wrong with it matters any more."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.close(timeout=CLOSING) if isinstance(client, MCPHTTPClient) else client.close()
        except MCPClientError:
            return

    def abort(self) -> None:
        """From another thread: the call under way ends with `cancelled`."""
        if self._client is not None:
            self._client.abort()

    def _explained(self, error: MCPClientError, operation: Operation) -> PiMcpError | LongWay:
        """LongWay where that way can do something about it: log in anew, or ask the header's command once more.

        A call that was refused for its login is sent a second time for nothing less (DESIGN §7).
        """
        lost = error.kind == "session_lost" and operation != "call"
        renewable = self._credential_id is not None or self._asks_commands
        refused = error.status == 401 and (operation != "call" or renewable)
        if (refused or lost) and not self._stateless:
            return LongWay()
        found = explained(error, operation, self.definition, self._resolved)
        if self._stateless and error.status == 401 and not self.definition.headers:
            hint = "Give the credential with --header 'NAME: VALUE'."
            return error_of(replace(found.diagnostic, hint=hint))
        return found

    @contextlib.contextmanager
    def _explaining(self, operation: Operation) -> Iterator[None]:
        """Turns the client's errors into the product's."""
        try:
            yield
        except MCPClientError as error:
            raise self._explained(error, operation) from None


def _resolved(resolved: ResolvedServer) -> ResolvedServer:
    if not resolved.commands:
        return resolved
    import asyncio

    from pi_mcp.config.lookup import resolve_secrets

    return asyncio.run(resolve_secrets(resolved))


def _era(name: str | None) -> Era | None:
    return "modern" if name == "modern" else "legacy" if name == "legacy" else None


def _is_called(tool: Tool, name: str) -> bool:
    return name in (tool.name, native_name(tool.server, tool.name))


def _ignored(done: float, total: float | None, message: str | None) -> None:
    """Nobody looks; the call's progress counts as a sign of life all the same."""
    del done, total, message


def explained(
    error: MCPClientError, operation: Operation, definition: ServerDefinition, resolved: ResolvedServer
) -> PiMcpError:
    """The product's error for the client's: the same words as on the long way."""
    if error.kind == "aborted":
        return failure(
            "cancelled", operation, definition.name, "Stopped.", "A call that was under way may have taken effect."
        )
    if error.kind == "session_required":
        hint = "Leave --stateless out, or configure the server."
        return failure("protocol_error", operation, definition.name, "The server insists on a session.", hint)
    from pi_mcp.connect.faults import UNKNOWN_OUTCOME, Fault, diagnose_error, error_for, late

    if error.kind == "timeout":
        return error_of(late(definition, operation, capped=HARD_CAP if error.detail == "cap" else None))
    if error.kind == "error":
        code, text = error.code or 0, error.server_message
        return error_of(diagnose_error(code, text, error.data, operation=operation, server=definition.name))
    if error.kind in ("version", "input_required"):
        reason = "The server asked during the call for something that is not offered to it."
        if error.kind == "version":
            said = f" ({resolved.redactor(error.detail)})" if error.detail else ""
            reason = f"The server answered the handshake with an unknown protocol version{said}."
        reason = f"{reason} {UNKNOWN_OUTCOME}" if operation == "call" else reason
        hint = "Look at the server's version and the `protocol` setting."
        return failure("protocol_error", operation, definition.name, reason, hint)
    if error.kind in ("usage", "not_initialized"):
        message = f"{clean_line(error.detail)}." if error.detail else "The server cannot be asked like this."
        return failure("configuration_invalid", operation, definition.name, message, "Correct `url` and `headers`.")
    named = {"www-authenticate": ", ".join(error.challenges)} if error.challenges else {}
    fault = Fault(
        error.kind,
        status=error.status,
        headers=named,
        executed=error.executed,
        retry_after=error.retry_after,
        session_lost=error.kind == "session_lost",
        detail=resolved.redactor(error.detail),
    )
    return error_for(fault, operation=operation, server=definition.name, definition=definition)
