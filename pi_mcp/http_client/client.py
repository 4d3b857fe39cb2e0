"""The two clients: one that keeps a session, one that does without. Both are synchronous and repeat nothing.

Comes in: an address, and what is to be listed, called or read. Goes out: result objects as sent; `MCPClientError` for
everything else. What is sent again at all: a request that the server refused with −32020 (a mirrored header is
missing) or −32022 (another protocol version), once each, since it proves that nothing ran.

    initialize ── server/discover ──┬─ 2026-07-28: every request says all there is to know, no session
                                    └─ not understood ── initialize ── notifications/initialized ── session
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from pi_mcp._version import __version__
from pi_mcp.errors import Operation
from pi_mcp.http_client.conversation import (
    FINAL_KINDS,
    FINAL_STATUS,
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Conversation,
    OnProgress,
    speaks_of_session,
)
from pi_mcp.http_client.fault import MCPClientError
from pi_mcp.http_client.listing import Pages
from pi_mcp.http_client.messages import encoded
from pi_mcp.http_client.mirror import annotated, parameter_headers
from pi_mcp.http_client.wire import Deadline

PROBE_WAIT = 3.0
"""Seconds that `server/discover` is waited for, before the server counts as one that ignores what it does not know."""
HARD_CAP = 600.0
"""Seconds after which a call ends, progress or not."""
LISTING_AT_MOST = 120.0
"""Seconds for all pages of a listing together."""
INPUT_ROUNDS = 10


class _Client(Conversation):
    """What can be asked of a server that is ready."""

    _late = False
    """The probe was not answered in time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MCPClientError:
            # What the block itself raised is what counts; and an end that failed harms nobody.
            pass

    def close(self) -> None:
        self._http.close()

    # what is asked for

    def list_tools(self) -> list[dict[str, Any]]:
        """All pages, at most 10,000 tools or 8 MiB; names are distinct. Where a bound or a later page's failure cut
        it, `notes` says so."""
        return [tool for page in self.tool_pages() for tool in page]

    def tool_pages(self) -> Iterator[list[dict[str, Any]]]:
        """As `list_tools`, page by page: whoever has found a tool need not ask for the rest."""
        self._ready()
        self.notes = []
        if self._offers("tools") is False:
            self.notes.append("The server offers no tools (it does not declare them).")
            return
        pages = Pages(can_call=self._can_call)
        try:
            yield from self._listed("tools/list", pages)
        except MCPClientError as error:
            if error.code != METHOD_NOT_FOUND or not pages.first:
                raise
            self.notes.append("The server offers no tools (it does not know `tools/list`).")

    def _listed(self, method: str, pages: Pages) -> Iterator[list[dict[str, Any]]]:
        """Page after page; `notes` are those of `pages` in the end. What fails behind the first page cuts the rest."""
        end = time.monotonic() + LISTING_AT_MOST
        while pages.more:
            try:
                left = end - time.monotonic()
                if left <= 0:
                    raise MCPClientError("timeout", operation="list")
                deadline = Deadline(min(self._timeout, left))
                result = self._request(method, pages.params, operation="list", deadline=deadline, retry=True)
            except MCPClientError as error:
                if pages.first or error.kind in ("session_lost", "aborted"):
                    raise
                pages.cut(f"A later page of the listing failed ({error.diagnostic.code}).")
                break
            yield pages.add(result, self.received)
        self.notes = pages.notes

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        schema: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """The result object. Raises MCPClientError, `tool_error` with the whole result where `isError` is true.

        `timeout`: seconds without an answer; with `on_progress(done, total, message)` the call's progress begins them
        anew, up to 600 s. `schema` is the tool's input schema, for the headers that it names. The call is sent once.
        """
        self._ready()
        deadline = Deadline(self._timeout if timeout is None else timeout, HARD_CAP if on_progress else None)
        result = self._call(name, dict(arguments or {}), deadline, schema, on_progress)
        if result.get("isError") is True:
            raise MCPClientError("tool_error", result=result)
        return result

    def list_resources(self) -> list[dict[str, Any]]:
        """All pages, bounded as `list_tools`."""
        self._ready()
        pages = Pages(key="uri", items="resources")
        return [item for page in self._listed("resources/list", pages) for item in page]

    def read_resource(self, uri: str) -> dict[str, Any]:
        """The result object: `contents` with text or base64 blobs."""
        self._ready()
        return self._request(
            "resources/read", {"uri": uri}, operation="call", deadline=Deadline(self._timeout), retry=True
        )

    def _ready(self) -> None:
        raise NotImplementedError

    def _probed(self, whole: Deadline) -> dict[str, Any] | None:
        """`_discover`; None also for a refusal or a silence that may be an older server's."""
        try:
            left = self._connect(whole)  # a long way to it says nothing of a server, only a long wait for its answer
            return self._discover(left if self._known_era == "modern" else min(PROBE_WAIT, left))
        except MCPClientError as error:
            if error.kind in FINAL_KINDS or error.status in FINAL_STATUS:
                raise
            self._late = error.kind == "timeout"
        return None

    def _offers(self, capability: str) -> bool | None:
        """Whether the server declares it; None where it declares nothing at all, which says nothing."""
        del capability
        return None

    def _can_call(self, tool: Mapping[str, Any]) -> bool:
        return self.era != "modern" or annotated(tool.get("inputSchema")) is not None

    def _call(
        self,
        name: str,
        arguments: dict[str, Any],
        deadline: Deadline,
        schema: Mapping[str, Any] | None,
        on_progress: OnProgress | None,
    ) -> dict[str, Any]:
        """`tools/call` with the rounds of an `input_required` result."""
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        try:
            encoded(params)
        except (TypeError, ValueError, RecursionError):
            raise MCPClientError("unsendable", executed="no") from None
        more = parameter_headers(schema, arguments) if schema else {}
        for _ in range(INPUT_ROUNDS + 1):
            try:
                result = self._request("tools/call", params, deadline=deadline, more=more, on_progress=on_progress)
            except MCPClientError as error:
                again = self._repeatable(error, name, arguments, deadline)
                if again is None:
                    raise
                more = again
                result = self._request("tools/call", params, deadline=deadline, more=more, on_progress=on_progress)
            if result.get("resultType") != "input_required" or self.era != "modern":
                return result
            params = {"name": name, "arguments": arguments, **self._input(result)}
        raise MCPClientError("input_required", result=result)

    def _repeatable(
        self, error: MCPClientError, name: str, arguments: Mapping[str, Any], deadline: Deadline
    ) -> dict[str, str] | None:
        """The mirrored headers for the one repetition of a call that was refused unread; None for any other error."""
        if error.code == UNSUPPORTED_VERSION and self._another_version(error):
            return {}
        if error.code != HEADER_MISMATCH or self.era != "modern":
            return None
        for page in self.tool_pages():
            for tool in page:
                if tool["name"] == name:
                    schema = tool.get("inputSchema")
                    deadline.heard()
                    return parameter_headers(schema, arguments) if isinstance(schema, dict) else None
        return None

    def _input(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """What an `input_required` result wants in the next round. Raises where it is not offered."""
        responses: dict[str, Any] = {}
        asked = result.get("inputRequests")
        for key, request in (asked if isinstance(asked, dict) else {}).items():
            given = self._answered(request) if isinstance(request, dict) else None
            if given is None:
                raise MCPClientError("input_required", result=dict(result))
            responses[key] = dict(given)
        more: dict[str, Any] = {"inputResponses": responses} if responses else {}
        if not responses:
            time.sleep(0.1)  # the server only wants to be asked again
        if isinstance(result.get("requestState"), str):
            more["requestState"] = result["requestState"]
        return more


class MCPHTTPClient(_Client):
    """One session with one server. `initialize()` first, `close()` last; or as a context manager.

    `session_id` is None where the server or its protocol has none. On a 404 for its session the client clears it and
    raises `session_lost`; `initialize()` starts another.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """`options` are those of `Conversation`: headers, timeout, connect_timeout, environ, era, capabilities,
        on_request."""
        super().__init__(url, **options)
        self.initialized = False
        self.capabilities: dict[str, Any] = {}
        """The server's, as `initialize` returned them."""

    def initialize(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Negotiate, `timeout` seconds in all; the server's capabilities. Once more it returns what it has."""
        if self.initialized:
            return self.capabilities
        self.session_id = self.era = self.protocol_version = None
        whole = Deadline(self._timeout if timeout is None else timeout)
        try:
            result = self._modern(whole) or self._legacy(whole)
        except TimeoutError:
            raise MCPClientError("timeout", operation="connect") from None
        capabilities = result.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.initialized = True
        return self.capabilities

    def _modern(self, whole: Deadline) -> dict[str, Any] | None:
        if self._known_era == "legacy":
            return None
        return self._probed(whole)

    def _legacy(self, whole: Deadline) -> dict[str, Any]:
        params = {
            "protocolVersion": HANDSHAKE_VERSIONS[-1],
            "capabilities": self._capabilities,
            "clientInfo": {"name": "pi-mcp", "version": __version__},
        }
        try:
            result = self._request("initialize", params, operation="connect", deadline=Deadline(whole.left()))
        except MCPClientError as error:
            # A modern server that was merely slower than the probe is asked again; it is safe to ask.
            found = self._discover(whole.left()) if self._late and error.kind == "error" else None
            if found is None:
                raise
            return found
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            said = (
                version if isinstance(version, str) and re.fullmatch("[0-9A-Za-z][0-9A-Za-z.-]{0,30}", version) else ""
            )
            raise MCPClientError("version", operation="connect", detail=said)
        self.era, self.protocol_version = "legacy", version
        self._learned(result, result.get("serverInfo"))
        self._deliver({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def close(self, *, timeout: float = 5.0) -> None:
        """End the session with a DELETE, within `timeout` seconds. Raises for an answer other than 200, 202, 204,
        404 and 405; the session is forgotten in any case."""
        headers, session = self._headers(), self.session_id
        self.session_id, self.initialized = None, False
        try:
            if session is None:
                return
            del headers["Content-Type"]
            self._http.resume()
            with self._http.send("DELETE", headers, None, Deadline(timeout)) as answer:
                if answer.status not in (200, 202, 204, 404, 405):
                    raise MCPClientError("status", operation="connect", status=answer.status)
        except TimeoutError:
            raise MCPClientError("timeout", operation="connect") from None
        finally:
            self._http.close()

    def _ready(self) -> None:
        if not self.initialized:
            raise MCPClientError("not_initialized", executed="no")

    def _offers(self, capability: str) -> bool | None:
        return capability in self.capabilities if self.capabilities else None

    def _lost(self) -> None:
        self.session_id, self.initialized = None, False


class StatelessMCPClient(_Client):
    """Every request says all there is to know: no handshake, no session, nothing to close.

    A server of 2026-07-28 is asked by its own rules; an older one is asked without a handshake, which those that keep
    no sessions answer. One that insists raises `session_required`: `MCPHTTPClient` is for it.
    """

    def _ready(self) -> None:
        """Find out, once, which of the two it is. The question is safe to ask and changes nothing."""
        if self.era is not None:
            return
        if self._known_era == "legacy" or self._probed(Deadline(self._timeout)) is None:
            self.era, self.protocol_version = "legacy", HANDSHAKE_VERSIONS[-1]

    def _refusal(self, error: Mapping[str, Any], operation: Operation) -> MCPClientError:
        found = super()._refusal(error, operation)
        if self.era == "legacy" and speaks_of_session({"error": error}, b""):
            return MCPClientError("session_required", operation=operation)
        return found

    def _speaks_for_sessions(self, error: Mapping[str, Any] | None, body: bytes) -> bool:
        return self.era == "legacy" and speaks_of_session(error, body)
