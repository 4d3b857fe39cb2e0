"""One request after another to one server: sent, answered, judged. What both clients share.

Comes in: a method and its parameters. Goes out: the result object, or `MCPClientError`. A request is sent once; a
server's own requests on the way are answered, and a broken stream is taken up where the server gave event ids.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pi_mcp._version import __version__
from pi_mcp.errors import Operation
from pi_mcp.http_client.address import parse
from pi_mcp.http_client.exchange import Answer, Exchange, TooLarge
from pi_mcp.http_client.fault import MCPClientError
from pi_mcp.http_client.messages import LARGEST, Events, Found, decoded, encoded, messages_in, normalized
from pi_mcp.http_client.mirror import routing_headers
from pi_mcp.http_client.wire import Deadline

MODERN_VERSIONS = ("2026-07-28",)
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NOTIFICATION_WAIT = 2.0
"""Seconds for a notification, a cancellation, or an answer to the server: nobody reads what comes back."""
RESUMPTIONS = 20
FRUITLESS_RESUMPTIONS = 2
PEEK = 64 * 1024
PEEK_WAIT = 5.0

_META = "io.modelcontextprotocol/"
METHOD_NOT_FOUND, HEADER_MISMATCH, UNSUPPORTED_VERSION = -32601, -32020, -32022
_JSON_TYPES = ("", "application/json", "application/json-rpc", "text/json", "text/plain", "application/octet-stream")
"""Under these the body decides; anything else is no answer of an MCP server."""
_NOT_EXECUTED = frozenset({401, 403, 404, 405, 407, 413, 421})
# After these, `initialize` would fare no better. Any other refusal may be how an older server answers what it does
# not know.
FINAL_STATUS = frozenset({401, 402, 407, 429})
FINAL_KINDS = frozenset(
    {"refused", "dns", "tls", "unreachable", "proxy", "connect_timeout", "redirect", "usage", "aborted"}
)

Era = Literal["modern", "legacy"]
OnRequest = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]
"""Answers a server's own request (method, params); None where it is not offered."""
OnProgress = Callable[[float, float | None, str | None], None]


class Conversation:
    """One request at a time. Not for several threads, but for `abort`."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 15.0,
        environ: Mapping[str, str] | None = None,
        era: Era | None = None,
        capabilities: Mapping[str, Any] | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        """Contacts nobody. Raises MCPClientError `usage` for an address or a header that cannot be used.

        `timeout`: seconds for one request. `environ`: where proxies (HTTPS_PROXY, NO_PROXY …) and certificates
        (SSL_CERT_FILE, SSL_CERT_DIR) are named, by default the process's. `era`: what the server speaks, where that
        is known. `capabilities` are declared to the server, and `on_request` answers what they make it ask.
        """
        try:
            address = parse(url)
        except ValueError as error:
            raise MCPClientError("usage", operation="connect", detail=f"The address cannot be used: {error}") from None
        self._http = Exchange(address, headers or {}, os.environ if environ is None else environ, connect_timeout)
        self._timeout = timeout
        self._capabilities = dict(capabilities or {})
        self._on_request = on_request
        self._ids = 0
        self.received = 0
        """Characters of the last answer."""
        self._known_era = era
        self.era: Era | None = None
        self.protocol_version: str | None = None
        self.session_id: str | None = None
        self.server_info: Mapping[str, Any] = {}
        self.instructions: str | None = None
        self.notes: list[str] = []
        """What was odd about the last listing, in sentences; empty where it is whole."""

    def abort(self) -> None:
        """From another thread: the request under way, or else the next one, ends with `aborted`; the server is told."""
        self._http.abort()

    def _another_version(self, error: MCPClientError) -> bool:
        """Take up a version that the server names in its refusal; False where there is none to take."""
        named = error.data.get("supported") if isinstance(error.data, dict) else None
        known = [one for one in MODERN_VERSIONS if isinstance(named, list) and one in named]
        if self.era != "modern" or not known:
            return False
        self.protocol_version = known[-1]
        return True

    def _answered(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        method, params = request.get("method"), request.get("params")
        if self._on_request is None or not isinstance(method, str):
            return None
        return self._on_request(method, params if isinstance(params, dict) else {})

    def _request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        operation: Operation = "call",
        deadline: Deadline,
        more: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
        retry: bool = False,
    ) -> dict[str, Any]:
        """One request, its result object. With `retry`, −32022 is answered by one more in a version it names.

        `more` are headers for a modern server; an older one gets none of them.
        """
        try:
            return self._once(method, params, operation, deadline, more or {}, on_progress)
        except MCPClientError as error:
            if not retry or error.code != UNSUPPORTED_VERSION or not self._another_version(error):
                raise
        return self._once(method, params, operation, deadline, more or {}, on_progress)

    def _once(
        self,
        method: str,
        params: Mapping[str, Any],
        operation: Operation,
        deadline: Deadline,
        more: Mapping[str, str],
        on_progress: OnProgress | None,
    ) -> dict[str, Any]:
        self._ids += 1
        request_id = self._ids
        sent = dict(params)
        meta: dict[str, Any] = {}
        if on_progress is not None:
            meta["progressToken"] = request_id
        if self.era == "modern":
            meta |= self._envelope()
        if meta:
            sent["_meta"] = meta
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": sent}
        headers = self._headers()
        if self.era == "modern":
            headers |= routing_headers(method, params) | dict(more)
        try:
            with self._http.send("POST", headers, encoded(message), deadline) as answer:
                if method == "initialize":
                    self._adopt_session(answer)
                reply = self._reply(answer, request_id, deadline, on_progress)
        except TimeoutError:
            self._give_up(request_id, method)
            raise MCPClientError("timeout", operation=operation, detail="cap" if deadline.capped else "") from None
        except KeyboardInterrupt:
            self._give_up(request_id, method)
            raise
        except MCPClientError as error:
            if error.kind == "aborted":
                self._give_up(request_id, method)
            elif error.kind == "session_lost":
                self._lost()
            raise _about(error, operation) from None
        if "error" in reply:
            raise self._refusal(reply["error"], operation)
        result: dict[str, Any] = reply["result"]
        return result

    def _envelope(self) -> dict[str, Any]:
        return {
            _META + "protocolVersion": self.protocol_version,
            _META + "clientInfo": {"name": "pi-mcp", "version": __version__},
            _META + "clientCapabilities": self._capabilities,
        }

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if self.protocol_version is not None:
            headers["MCP-Protocol-Version"] = self.protocol_version
        if self.session_id is not None:
            headers["Mcp-Session-Id"] = self.session_id
        return headers

    def _adopt_session(self, answer: Answer) -> None:
        session = answer.header("mcp-session-id")
        if answer.status // 100 == 2 and re.fullmatch("[\x21-\x7e]{1,1024}", session):
            self.session_id = session

    def _lost(self) -> None:
        self.session_id = None

    def _refusal(self, error: Mapping[str, Any], operation: Operation) -> MCPClientError:
        """The server's own JSON-RPC error. It may quote the very header that it refuses."""
        text = error["message"]
        for secret in self._http.secrets:
            text = text.replace(secret, "***")
        not_run = error["code"] in (HEADER_MISMATCH, UNSUPPORTED_VERSION)
        return MCPClientError(
            "error",
            operation=operation,
            code=error["code"],
            server_message=text,
            data=error.get("data"),
            executed="no" if not_run else "unknown",
        )

    # what comes back

    def _reply(
        self, answer: Answer, request_id: int, deadline: Deadline, on_progress: OnProgress | None
    ) -> dict[str, Any]:
        if answer.status // 100 != 2:
            return self._judged(answer, request_id)
        kind = answer.media_type
        if kind == "text/event-stream" and answer.status == 200:
            return self._streamed(answer, request_id, deadline, on_progress)
        if kind in ("text/html", "application/xhtml+xml"):
            raise MCPClientError("html", status=answer.status)
        if kind not in _JSON_TYPES and not kind.endswith("+json"):
            shown = kind[:60] if re.fullmatch("[a-z0-9.+-]+/[a-z0-9.+-]+", kind) else "unreadable"
            raise MCPClientError("not_mcp", detail=f"content type {shown}")
        try:
            text = answer.body(LARGEST).decode("utf-8-sig", "replace")
        except TooLarge:
            raise MCPClientError("too_large", detail="64 MiB") from None
        if not text.strip():
            said = f"HTTP {answer.status} without a body"
            raise MCPClientError("not_mcp", detail=f"a request was answered by {said}")
        self.received = len(text)
        found = messages_in(text, request_id)
        self._heed(found, request_id, deadline, on_progress)
        if found.answer is None:
            raise MCPClientError("html" if text.lstrip()[:1] == "<" else "malformed", status=answer.status)
        return found.answer

    def _streamed(
        self, answer: Answer, request_id: int, deadline: Deadline, on_progress: OnProgress | None
    ) -> dict[str, Any]:
        """The answer out of an event stream. One that breaks off is taken up again by GET with Last-Event-ID, where
        the server gave ids, a bounded number of times; the POST is never repeated."""
        current: Answer | None = answer
        last_id: str | None = None
        wait, resumed, fruitless = 1.0, 0, 0
        fault = MCPClientError("no_response")
        while True:
            if current is not None:
                fault = MCPClientError("no_response")
                events = Events()
                try:
                    for chunk in current.chunks():
                        for event in events.feed(chunk):
                            wait = wait if event.retry is None else event.retry
                            if event.id:
                                last_id, fruitless = event.id, 0
                            found = messages_in(event.data, request_id) if event.data else Found()
                            self._heed(found, request_id, deadline, on_progress)
                            if found.answer is not None:
                                self.received = len(event.data)
                                current.finish()
                                return found.answer
                            if found.malformed:
                                raise MCPClientError("malformed")
                    # A whole answer whose last empty line was lost is an answer all the same.
                    rest = events.rest()
                    found = messages_in(rest, request_id) if rest else Found()
                    if found.answer is not None:
                        return found.answer
                except TooLarge:
                    raise MCPClientError("too_large", detail="64 MiB") from None
                except MCPClientError as error:
                    if error.kind != "reset":
                        raise
                    fault = error
                finally:
                    if current is not answer:
                        current.close()
                    current = None
            if last_id is None or resumed == RESUMPTIONS or fruitless == FRUITLESS_RESUMPTIONS:
                raise fault
            resumed += 1
            fruitless += 1
            time.sleep(min(max(wait, 0.05), 30.0, deadline.left()))
            current = self._taken_up(last_id, deadline)

    def _taken_up(self, last_id: str, deadline: Deadline) -> Answer | None:
        headers = {name: value for name, value in self._headers().items() if name.startswith(("Mcp-", "MCP-"))}
        try:
            answer = self._http.send(
                "GET", {**headers, "Accept": "text/event-stream", "Last-Event-ID": last_id}, None, deadline
            )
        except MCPClientError as error:
            if error.kind == "aborted":
                raise
            return None
        if answer.status == 200 and answer.media_type == "text/event-stream":
            return answer
        answer.close()
        return None

    def _heed(self, found: Found, request_id: int, deadline: Deadline, on_progress: OnProgress | None) -> None:
        """The server's own messages on the way to an answer."""
        for message in found.others:
            params = message["params"]
            if "id" in message:
                # Within the request's own time, however many the server asks and however slowly it takes answers.
                self._answer_server(message, min(NOTIFICATION_WAIT, deadline.left()))
            elif message["method"] == "notifications/progress" and on_progress is not None:
                done, total, text = (params.get(key) for key in ("progress", "total", "message"))
                if str(params.get("progressToken")) == str(request_id) and isinstance(done, int | float):
                    deadline.heard()
                    on_progress(
                        done, total if isinstance(total, int | float) else None, text if isinstance(text, str) else None
                    )

    def _answer_server(self, message: Mapping[str, Any], seconds: float) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        given: Mapping[str, Any] | None = {} if message["method"] == "ping" else self._answered(message)
        if given is None:
            reply["error"] = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
        else:
            reply["result"] = dict(given)
        self._deliver(reply, seconds)

    def _judged(self, answer: Answer, request_id: int) -> dict[str, Any]:
        """What an answer that is no success means: the server's own JSON-RPC error, or a fault."""
        status, body = answer.status, self._peek(answer)
        error = _error_in(body)
        own = error is not None and str(error.get("id")) == str(request_id)
        missing = own and error is not None and error["error"].get("code") == METHOD_NOT_FOUND
        if self.session_id is not None:
            if status == 404 and not missing:
                raise MCPClientError("session_lost", status=status, executed="no")
            if status == 400 and speaks_of_session(error, body):
                raise MCPClientError("session_lost", status=status)
        elif status in (400, 404) and self._speaks_for_sessions(error, body):
            raise MCPClientError("session_required", status=status)
        if error is not None and status not in (401, 403, 407, 429):
            shaped = normalized(error)
            if shaped is not None:
                return shaped
        raise MCPClientError(
            "rate_limited" if status == 429 else "status",
            status=status,
            executed="no" if status in _NOT_EXECUTED else "unknown",
            challenges=answer.headers("www-authenticate"),
            retry_after=_retry_after(answer.header("retry-after")),
        )

    def _speaks_for_sessions(self, error: Mapping[str, Any] | None, body: bytes) -> bool:
        del error, body
        return False

    def _peek(self, answer: Answer) -> bytes:
        """The start of a body that is of no great interest; empty where it is long, slow or broken."""
        body = bytearray()
        try:
            answer.hurry(PEEK_WAIT)
            for chunk in answer.chunks():
                body += chunk
                if len(body) > PEEK:
                    return b""
        except (MCPClientError, TimeoutError):
            return b""
        return bytes(body)

    def _deliver(self, message: Mapping[str, Any], seconds: float = NOTIFICATION_WAIT) -> None:
        """A message that nobody answers; whatever becomes of it harms nothing."""
        try:
            with self._http.send("POST", self._headers(), encoded(message), Deadline(seconds)) as answer:
                if answer.media_type != "text/event-stream":  # there a server may say something some day
                    self._peek(answer)
        except (MCPClientError, TimeoutError):
            return

    def _give_up(self, request_id: int, method: str) -> None:
        """Nobody waits any more: the closed connection says so, and an older server is told besides."""
        self._http.resume()  # what was to be stopped has ended
        if method == "initialize" or self.era != "legacy":
            return
        params = {"requestId": request_id, "reason": "The client stopped waiting."}
        self._deliver({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    # the probe

    def _connect(self, deadline: Deadline) -> float:
        """Have a socket; the seconds that are left."""
        try:
            self._http.connect(deadline)
            return deadline.left()
        except TimeoutError:
            raise MCPClientError("timeout", operation="connect", executed="no") from None
        except MCPClientError as error:
            raise _about(error, "connect") from None

    def _discover(self, seconds: float) -> dict[str, Any] | None:
        """Take up the modern protocol; None where the server answers without speaking a version of ours."""
        self.era, self.protocol_version = "modern", MODERN_VERSIONS[-1]
        try:
            result = self._request("server/discover", {}, operation="connect", deadline=Deadline(seconds), retry=True)
            supported = result.get("supportedVersions")
            mutual = [one for one in MODERN_VERSIONS if isinstance(supported, list) and one in supported]
            if mutual:
                self.protocol_version = mutual[-1]
                meta = result.get("_meta")
                info = meta.get(_META + "serverInfo") if isinstance(meta, dict) else None
                self._learned(result, info or result.get("serverInfo"))
                return result
        except BaseException:
            self.era = self.protocol_version = None
            raise
        self.era = self.protocol_version = None
        return None

    def _learned(self, result: Mapping[str, Any], info: Any) -> None:
        self.server_info = info if isinstance(info, dict) else {}
        text = result.get("instructions")
        self.instructions = text if isinstance(text, str) else None


def _about(error: MCPClientError, operation: Operation) -> MCPClientError:
    """The same, said of what was under way."""
    if error.diagnostic.operation == operation:
        return error
    return MCPClientError(
        error.kind,
        operation=operation,
        detail=error.detail,
        status=error.status,
        executed=error.executed,
        challenges=error.challenges,
        retry_after=error.retry_after,
    )


def _error_in(body: bytes) -> dict[str, Any] | None:
    try:
        value = decoded(body)
    except ValueError:
        return None
    if isinstance(value, dict) and "method" not in value and isinstance(value.get("error"), dict):
        return value
    return None


def speaks_of_session(error: Mapping[str, Any] | None, body: bytes) -> bool:
    """A refusal that means a missing or an unknown session: many servers answer so in place of 404."""
    if error is not None:
        text = error["error"].get("message")
        return isinstance(text, str) and re.search("session|not initialized|initialization", text, re.I) is not None
    return len(body) < 4096 and re.search(rb"session", body, re.I) is not None


def _retry_after(value: str) -> float | None:
    """Seconds of a `Retry-After` header, given as seconds or as a date (RFC 9110 §10.2.3)."""
    value = value.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        return float(value)
    if not value:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, round(parsedate_to_datetime(value).timestamp() - time.time(), 3))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
