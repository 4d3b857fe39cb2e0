"""One server's connection over its whole life: started on demand, shared by all who use it, started again.

Comes in: a definition, and what callers want listed or called. Goes out: server facts, listings, raw results, or a
`PiMcpError` of ours. A call is sent once and never again by this room. Each attempt lives in one owner task that
enters and leaves the transport and the session itself; nobody else touches them.

    idle ── connect ──► connecting ──► connected ──┬─ close, reconnect ──► idle
      ▲                     │                      └─ process exit, lost session ──► failed (the next use connects)
      └────── close ────────┴─ failure ──► failed | authentication_required (the next use tries again)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pi_mcp.config import policy
from pi_mcp.connect.command import CannotStart, command_line
from pi_mcp.connect.faults import (
    NOT_EXECUTED_CODES,
    UNKNOWN_OUTCOME,
    Fault,
    Faults,
    diagnose,
    diagnose_error,
    error_for,
    late,
)
from pi_mcp.connect.listing import METHOD_UNKNOWN, NOT_DECLARED, Listing, Pages
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.session import (
    METHOD_NOT_FOUND,
    NotUnderstood,
    Plan,
    ProtocolSession,
    RequestFailed,
    ServerInfo,
    load_sdk,
)
from pi_mcp.errors import Diagnostic, NotExecuted, Operation, PiMcpError, error_of, failure
from pi_mcp.text import clean_line, quoted

if TYPE_CHECKING:
    from pi_mcp.config.definition import Configuration, ServerDefinition
    from pi_mcp.config.resolve import ResolvedServer
    from pi_mcp.connect.sender import Credentials

State = Literal["idle", "connecting", "connected", "failed", "authentication_required"]
Elicit = Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any] | None]]
T = TypeVar("T")

HARD_CAP = 600.0
"""Seconds after which a tool call ends in any case, progress or not (DESIGN §4)."""
CLOSE_LIMIT = 5.0
"""Seconds that ending a connection may take."""
CANCEL_WAIT = 0.8
"""Seconds that a cancelled caller waits for `notifications/cancelled` to be written."""
FIRST_BACKOFF = 0.2
LAST_BACKOFF = 5.0
LISTING_LIMIT = 60.0
"""Seconds that all pages of one listing may take together."""
MOST_READINGS = 3
"""Of one listing that is joined again and again after changes."""


@dataclass(frozen=True, slots=True)
class CallHandlers:
    """What the caller of one tool offers to it. Both run on the event loop; `on_progress` must not block.

    `on_progress(done, total, message)`: message as sent, not cleaned. `elicit(schema, message)`: values for the
    form, or None to decline; it may take as long as the person does.
    """

    on_progress: Callable[[float, float | None, str | None], None] | None = None
    elicit: Elicit | None = None


@dataclass(eq=False, slots=True)
class _Call:
    """A call in flight."""

    handlers: CallHandlers
    heard: float
    """Loop time of the last sign of life."""
    asking: set[asyncio.Task[dict[str, Any] | None]] = field(default_factory=set)
    """Open questions to the person that may be this call's: the server waits for us, so its silence does not count."""


@dataclass(eq=False)
class _Link:
    """One attempt, and when it succeeded one live session."""

    faults: Faults
    ready: asyncio.Future[ServerInfo]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    session: ProtocolSession | None = None
    owner: asyncio.Task[None] | None = None
    probed: bool = False
    """The handshake was `auto`: if the process died during it, the probe may have killed it."""
    calls: set[_Call] = field(default_factory=set)
    args: tuple[str, ...] = ()
    """The server's own arguments: the folders among them are roots, too."""
    retired: bool = False
    """Of no more use for anything new. It lives on until the calls that are under way have their answers."""

    @property
    def live(self) -> bool:
        return (
            self.session is not None and not self.retired and not self.stop.is_set() and not self.session.ended.is_set()
        )

    def retire(self) -> None:
        self.retired = True
        if not self.calls:
            self.stop.set()

    def fail(self, error: PiMcpError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # an attempt that nobody waits for any more is no leak


class Connection:
    """See the module's docstring. All methods belong to one event loop."""

    tells_streams_apart = False
    """Whether the HTTP transport is to say which request's stream a server's message came in (`guard.STREAM`)."""

    def __init__(
        self,
        definition: ServerDefinition,
        configuration: Configuration,
        *,
        roots_cwd: Path | None = None,
        credentials: Callable[[ResolvedServer], Credentials | None] | None = None,
    ) -> None:
        self.definition = definition
        self.log = LogRing()
        self.info: ServerInfo | None = None
        self.generation = 0
        self.last_success: float | None = None
        self.diagnostic: Diagnostic | None = None
        self.on_tools_changed: list[Callable[[], None]] = []
        self._configuration = configuration
        self._roots_cwd = (roots_cwd or configuration.cwd).absolute()
        self._credentials = credentials
        self._logins: Credentials | None = None
        self._state: State = "idle"
        self._link: _Link | None = None
        self._attempt: asyncio.Task[ServerInfo] | None = None
        self._listing: asyncio.Task[Listing] | None = None
        self._changes = 0
        """How often the server has told of changed tools; `_read_at`: the same when the running listing began."""
        self._read_at = 0
        self._read_again = False
        """Somebody has come to the running listing after a change that it may not have."""
        self._leftovers: set[asyncio.Task[Any]] = set()
        self._retired: set[_Link] = set()
        """Links whose session the server has lost while calls wait for their own answers on it."""
        self._links: set[_Link] = set()
        """All whose owner still runs: one that was replaced while somebody closed it must not be lost."""
        self._dismissed = False
        self._failures = 0
        self._failed_at = 0.0
        self._era: str | None = None
        """What the last handshake came to; forgotten when it fails once."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def transport(self) -> str:
        return self.definition.transport

    @property
    def state(self) -> State:
        return self._state

    # connecting

    async def connect(self, *, era: str | None = None) -> ServerInfo:
        """Be connected; joins an attempt that runs. `era` is the remembered outcome of the negotiation.

        Raises PiMcpError. Cancelling this leaves the attempt running for others and for the next use.
        """
        link = self._link
        if link is not None and link.live and self.info is not None:
            return self.info
        if self._dismissed:
            raise self._out_of_use()
        if self._attempt is None or self._attempt.done():
            self._attempt = self._owned(self._connect(era))
        return await self._joined(self._attempt)

    async def reconnect(self) -> ServerInfo:
        """End this connection and start a new one, at once and with nothing remembered. Raises PiMcpError."""
        await self.close()
        self._failures = 0
        self._era = None
        return await self.connect()

    async def close(self) -> None:
        """End it, with everything in flight; the process is gone afterwards. About 5 s at most, idempotent."""
        for task in (self._listing, self._attempt):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CLOSE_LIMIT + 1.0)
        ending = set(self._links)
        await asyncio.gather(*(self._end(link) for link in ending))
        if self._link in ending or self._link not in self._links:  # another may have been opened meanwhile
            self._link = None
        leftovers = list(self._leftovers)
        for leftover in leftovers:
            leftover.cancel()
        if leftovers:
            await asyncio.wait(leftovers, timeout=1.0)
        if self._link is None:
            self._state = "idle"

    @property
    def at_rest(self) -> bool:
        """Nothing of it runs."""
        return not self._links

    @property
    def dismissed(self) -> bool:
        return self._dismissed

    def dismiss(self) -> None:
        """Its definition is out of use: whoever still holds it starts nothing with it any more."""
        self._dismissed = True

    def _out_of_use(self) -> PiMcpError:
        return NotExecuted(
            Diagnostic(
                "connection_failed",
                "connect",
                self.name,
                "The server's entry changed or went meanwhile; nothing was sent.",
                "Repeat it.",
            )
        )

    async def _connect(self, era: str | None) -> ServerInfo:
        from pi_mcp.config import resolve, resolve_secrets

        wait = min(FIRST_BACKOFF * 2 ** (self._failures - 1), LAST_BACKOFF) if self._failures else 0.0
        wait -= time.monotonic() - self._failed_at
        if wait > 0:
            await asyncio.sleep(wait)
        # The old child is waited for before a new one starts (B034). A session that an HTTP server has lost may
        # still have calls under way: each of them gets the answer that says whether it ran (B053).
        if self._link is not None and self._link.retired and self._link.calls:
            self._retired.add(self._link)
        else:
            await self._end(self._link)
        self._state = "connecting"
        try:
            resolved = resolve(self.definition, self._configuration)
            self.log.redactor = resolved.redactor
            unresolved, resolved = resolved, await resolve_secrets(resolved)
            self._logins = self._logins_for(unresolved, resolved)
            self._look_for_command(resolved)
            await load_sdk()
            info = await self._open(resolved, era or self._era)
        except CannotStart as error:
            told = error_for(error.fault, operation="connect", server=self.name, definition=self.definition)
            # Nothing was started, so nothing needs to be spared by a wait before the next attempt.
            self._failed(told.diagnostic, counts=False)
            raise told from None
        except PiMcpError as error:
            self._failed(error.diagnostic)
            raise
        except asyncio.CancelledError:
            self._state = "idle"
            raise
        except Exception:
            # Ours, or the SDK's: what it says is for the debug log, not for a person or a model.
            logging.getLogger("pi_mcp").debug("connecting %s failed", clean_line(self.name), exc_info=True)
            unknown = failure("operation_failed", "connect", self.name, "The connection failed in an unknown way.")
            self._failed(unknown.diagnostic)
            raise unknown from None
        self.info = info
        self._era = info.era
        self.generation += 1
        self._state = "connected"
        self._succeeded()
        return info

    def _look_for_command(self, resolved: ResolvedServer) -> None:
        """Raises CannotStart for a program or folder that is not there, before anything is loaded for it."""
        if self.definition.transport == "stdio":
            command_line(resolved, resolved.environ, supervised=False)

    async def _open(self, resolved: ResolvedServer, era: str | None) -> ServerInfo:
        """Start an owner; once more with a plain `initialize` when the process ended on the probe (DESIGN §5)."""
        plan: Plan = "auto"
        if self.definition.protocol == "legacy" or era == "legacy":
            plan = "legacy"
        elif era == "modern":
            plan = "modern"
        deadline = asyncio.get_running_loop().time() + self.definition.startup_timeout
        link = self._start(resolved, plan, deadline)
        try:
            return await link.ready
        except PiMcpError as error:
            fault = link.faults.fatal
            killed = fault is not None and fault.kind in ("exit", "stdout_closed")
            again: Plan | None = None
            if plan != "legacy" and self.definition.transport == "stdio" and link.probed and killed:
                again = "legacy"
            elif plan == "legacy" and self.definition.protocol == "auto" and not isinstance(error, _Expired):
                # The remembered outcome failed once, so it is forgotten: negotiate anew.
                again = "auto" if error.diagnostic.code == "protocol_error" else None
            if again is None:
                raise
        await self._end(link)
        return await self._start(resolved, again, deadline).ready

    def _start(self, resolved: ResolvedServer, plan: Plan, deadline: float) -> _Link:
        if self._dismissed:
            raise self._out_of_use()
        link = _Link(Faults(), asyncio.get_running_loop().create_future(), probed=plan != "legacy")
        self._link = link
        self._links.add(link)
        link.args = resolved.args
        link.owner = asyncio.create_task(self._own(link, resolved, plan, deadline), name=f"mcp:{self.name}")
        return link

    async def _own(self, link: _Link, resolved: ResolvedServer, plan: Plan, deadline: float) -> None:
        """The owner task: the only place that enters and leaves a transport and its session."""
        try:
            async with (
                asyncio.timeout_at(deadline) as limit,
                self._transport(resolved, link) as (read, write),
                self._session_over(read, write, link) as session,
            ):
                try:
                    info = await self._handshake(session, plan, deadline)
                except asyncio.CancelledError:
                    if limit.expired():
                        # Said before the process is ended, which takes its own time.
                        link.fail(self._startup_timeout())
                    raise
                limit.reschedule(None)
                link.session = session
                if not link.ready.done():
                    link.ready.set_result(info)
                self._listen(session, info)
                await _first(link.stop, session.ended)
                if session.ended.is_set() and not link.stop.is_set():
                    self._died(link)
        except asyncio.CancelledError:
            link.fail(failure("connection_failed", "connect", self.name, "The connection was closed."))
            raise
        except TimeoutError:
            link.fail(self._startup_timeout())
        except Exception as error:
            link.fail(self._explained(error, link, "connect"))
            if link.session is not None and not link.stop.is_set():
                self._died(link)
        finally:
            link.stop.set()
            self._links.discard(link)
            self._retired.discard(link)
            link.fail(failure("connection_failed", "connect", self.name, "The connection was closed."))

    async def _handshake(self, session: ProtocolSession, plan: Plan, deadline: float) -> ServerInfo:
        """Negotiate; once more after the wait that a limited server states, where it fits (B065)."""
        try:
            return await session.handshake(plan)
        except RequestFailed as error:
            wait = _stated_wait(error)
            if wait is None or asyncio.get_running_loop().time() + wait >= deadline:
                raise
        await asyncio.sleep(wait)
        return await session.handshake(plan)

    def _session_over(self, read: Any, write: Any, link: _Link) -> ProtocolSession:
        return ProtocolSession(read, write, faults=link.faults, log=self.log, peer=_Peer(self, link))

    def _listen(self, session: ProtocolSession, info: ServerInfo) -> None:
        if info.era == "modern" and info.list_changed:
            session.listen()

    def _logins_for(self, unresolved: ResolvedServer, resolved: ResolvedServer) -> Credentials | None:
        """What renews the headers of this connection: a stored login, or the commands of the file."""
        if self.definition.transport == "stdio":
            return None
        found = self._credentials(resolved) if self._credentials is not None else None
        if found is None and any(command.table == "headers" for command in unresolved.commands):
            from pi_mcp.connect.header_commands import HeaderCommands

            return HeaderCommands(unresolved, resolved)
        return found

    def _transport(self, resolved: ResolvedServer, link: _Link) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        if self.definition.transport == "stdio":
            from pi_mcp.connect.stdio import stdio_transport

            return stdio_transport(resolved, link.faults, self.log, environ=resolved.environ)
        credentials = self._logins
        if self.definition.transport == "http":
            from pi_mcp.connect.http import http_transport

            return http_transport(
                resolved, link.faults, self.log, credentials=credentials, mark=self.tells_streams_apart
            )
        from pi_mcp.connect.sse import sse_transport

        return sse_transport(resolved, link.faults, self.log, credentials=credentials)

    async def _end(self, link: _Link | None) -> None:
        """Let an owner leave its contexts; when it cannot, cancel it. Bounded."""
        if link is None or link.owner is None or link.owner.done():
            return
        link.stop.set()
        if link.session is None:
            # Still in its handshake: nothing looks at `stop` there.
            link.owner.cancel()
        await asyncio.wait({link.owner}, timeout=CLOSE_LIMIT)
        if not link.owner.done():
            link.owner.cancel()
            await asyncio.wait({link.owner}, timeout=1.0)

    def _died(self, link: _Link) -> None:
        """The server ended by itself after the handshake."""
        if self._link is link and not link.retired:
            fault = link.faults.fatal or Fault("disconnected")
            self._failed(diagnose(fault, operation="connect", server=self.name, definition=self.definition, idle=True))

    def _failed(self, diagnostic: Diagnostic, *, counts: bool = True) -> None:
        """`counts`: the next attempt waits a little longer than this one did."""
        self.diagnostic = diagnostic
        self._state = "authentication_required" if diagnostic.code == "authentication_required" else "failed"
        self._failures += counts
        self._failed_at = time.monotonic()
        if self._link is None or self._link.session is None:
            self._era = None

    def _succeeded(self) -> None:
        self.last_success = time.time()
        self.diagnostic = None
        if self._link is not None and self._link.live:
            self._state = "connected"

    def _startup_timeout(self) -> PiMcpError:
        return _Expired(late(self.definition, "connect"))

    # listing

    async def list_tools(self) -> Listing:
        """All tools, connecting if needed; one listing at a time, shared by all who wait. Raises PiMcpError.

        Who comes after a change that the server told of gets what it lists since then.
        """
        if self._listing is None or self._listing.done():
            self._listing = self._owned(self._list())
        elif self._changes != self._read_at:
            self._read_again = True
        return await self._joined(self._listing)

    async def _list(self) -> Listing:
        info = await self.connect()
        if info.has_tools is False:
            return NOT_DECLARED
        for _ in range(MOST_READINGS):
            self._read_at, self._read_again = self._changes, False
            try:
                listing = await self._pages()
            except NotExecuted:
                # The server had lost the session: a listing may be asked for again, once.
                await self.connect()
                listing = await self._pages()
            if not self._read_again:
                break
        if info.has_tools is None and listing is not METHOD_UNKNOWN:
            note = "The server declares no capabilities, but answers `tools/list`."
            listing = Listing(listing.tools, listing.complete, (note, *listing.notes), listing.ttl)
        return listing

    async def _pages(self) -> Listing:
        link, session = self._usable("list")
        # What a header cannot carry is dropped where headers are: over HTTP (SEP-2243).
        pages = Pages(can_call=session.can_call if self.definition.transport == "http" else None)
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = began + max(LISTING_LIMIT, self.definition.timeout)
        waited = False
        while pages.more:
            params = {} if pages.cursor is None else {"cursor": pages.cursor}
            first = pages.cursor is None
            try:
                async with asyncio.timeout_at(min(end, loop.time() + self.definition.timeout)):
                    result = await session.request("tools/list", params)
            except RequestFailed as error:
                if error.code == METHOD_NOT_FOUND and error.fault is None and first:
                    self._succeeded()
                    return METHOD_UNKNOWN
                failed = self._explained(error, link, "list")
                if error.fault is not None and error.fault.session_lost:
                    raise NotExecuted(failed.diagnostic) from None
                wait = _stated_wait(error)
                if wait is not None and not waited and loop.time() + wait < min(end, began + self.definition.timeout):
                    waited = True
                    await asyncio.sleep(wait)
                    continue
                if first or error.closed:
                    raise failed from None
                pages.cut(f"A later page of the listing failed ({failed.diagnostic.code}).")
            except TimeoutError:
                if first:
                    expired = error_of(late(self.definition, "list"))
                    self._doubt(link, expired.diagnostic)
                    raise expired from None
                pages.cut("A later page of the listing did not come in time.")
            else:
                pages.add(result)
                self._succeeded()
        return pages.listing()

    # calling

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        handlers: CallHandlers | None = None,
        schema: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """Call a tool by its original name, once; the result object as the server sent it.

        `generation` is that of the connection whose listing was compared: another one by now has a tool that nobody
        has looked at, so nothing is sent and NotExecuted is raised.

        Raises NotExecuted where the answer proves that it did not run (DESIGN §7), otherwise ServerError or
        AuthenticationError; the message says when the outcome is unknown. `toolTimeoutMs` limits the silence;
        progress of this call restarts it, and HARD_CAP ends it in any case. Cancelling the waiting task sends
        `notifications/cancelled` and returns within a second; the server stays.
        """
        await self.connect()
        link, session = self._usable("call")
        if generation is not None and generation != self.generation:
            raise NotExecuted(
                Diagnostic(
                    "connection_failed",
                    "call",
                    self.name,
                    "The connection was replaced before the call was sent; nothing was sent.",
                    "Call again.",
                )
            )
        loop = asyncio.get_running_loop()
        call = _Call(handlers or CallHandlers(), loop.time())
        link.calls.add(call)

        def progressed(done: float, total: float | None, message: str | None) -> None:
            call.heard = loop.time()
            if call.handlers.on_progress is not None:
                call.handlers.on_progress(done, total, message)

        answered = asyncio.Event()

        async def send() -> dict[str, Any]:
            try:
                return await session.call_tool(
                    name,
                    arguments,
                    schema=schema,
                    on_progress=progressed,
                    answer=partial(self._answer, link, call),
                )
            finally:
                answered.set()  # a turn of the loop earlier than the end of the task would be heard

        task = asyncio.create_task(send())
        try:
            result = await self._watched(task, call, answered)
        except PiMcpError:
            raise
        except Exception as error:
            raise self._explained(error, link, "call") from None
        finally:
            link.calls.discard(call)
            if link.retired:
                link.retire()
            for question in call.asking:
                if not any(question in other.asking for other in link.calls):
                    question.cancel()
            if task.done():
                _look_at(task)  # cancelled in the turn of the loop in which the answer came
            else:
                await self._abandon(task)
        self._succeeded()
        self._failures = 0
        return result

    async def _watched(self, task: asyncio.Task[T], call: _Call, answered: asyncio.Event) -> T:
        loop = asyncio.get_running_loop()
        silence = self.definition.tool_timeout
        cap = loop.time() + HARD_CAP
        while True:
            limit = cap if call.asking else min(cap, call.heard + silence)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(limit):
                    await answered.wait()
            if answered.is_set():
                return await task
            now = loop.time()
            if now < cap and (call.asking or now < call.heard + silence):
                continue
            expired = error_of(late(self.definition, "call", capped=HARD_CAP if now >= cap else None))
            if self._link is not None and now < cap:
                self._doubt(self._link, expired.diagnostic)
            raise expired

    async def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Stop waiting for a request: the cancellation is sent, within a bound, even by a writer that is stuck."""
        task.cancel()
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)
        task.add_done_callback(_look_at)
        await asyncio.wait({task}, timeout=CANCEL_WAIT)

    def _usable(self, operation: Operation) -> tuple[_Link, ProtocolSession]:
        link = self._link
        session = link.session if link is not None and link.live else None
        if link is None or session is None:
            fault = (link.faults.fatal if link else None) or Fault("disconnected")
            # Nothing was sent yet.
            raise error_for(
                Fault(
                    "disconnected" if operation == "call" else fault.kind,
                    executed="no",
                    exit_status=fault.exit_status,
                    signal=fault.signal,
                ),
                operation=operation,
                server=self.name,
                definition=self.definition,
            )
        return link, session

    # what the server asks for

    def capabilities(self) -> dict[str, Any]:
        """What is declared to the server."""
        return policy.capabilities(self.definition)

    async def _answer(
        self, link: _Link, call: _Call | None, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        declared = self.capabilities()
        if method == "roots/list" and "roots" in declared:
            return {"roots": await asyncio.to_thread(_roots, self._roots_cwd, link.args)}
        if method == "elicitation/create" and "elicitation" in declared:
            return await self._elicit(link, call, params)
        return None

    async def _elicit(self, link: _Link, call: _Call | None, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the person behind the call that this belongs to; several possible ones are none."""
        # A stdio server does not say which call its question belongs to: it is that of all calls of one person.
        calls = list(link.calls) if call is None else [call]
        asked = {each.handlers.elicit for each in calls}
        elicit = asked.pop() if len(asked) == 1 else None
        schema = params.get("requestedSchema")
        if elicit is None or params.get("mode") == "url" or not isinstance(schema, dict):
            return {"action": "decline"}
        text = params.get("message")
        question = asyncio.ensure_future(elicit(schema, text if isinstance(text, str) else ""))
        for each in calls:
            each.asking.add(question)
        try:
            content = await question
            if content is not None:
                # What is no JSON object could not be sent, and trying to would end the connection.
                content = dict(json.loads(json.dumps(dict(content), allow_nan=False)))
        except asyncio.CancelledError:
            if question.cancelled() and not _being_cancelled():
                return {"action": "cancel"}
            question.cancel()
            raise
        except Exception:
            # A host whose dialog fails has not answered; its exception is no business of the server's.
            logging.getLogger("pi_mcp").debug("elicitation failed", exc_info=True)
            content = None
        finally:
            for each in calls:
                each.asking.discard(question)
                each.heard = asyncio.get_running_loop().time()
        return {"action": "decline"} if content is None else {"action": "accept", "content": content}

    def _tools_changed(self) -> None:
        self._changes += 1
        for callback in list(self.on_tools_changed):
            callback()

    # errors

    def _explained(self, error: Exception, link: _Link, operation: Operation) -> PiMcpError:
        """Our own error for whatever went wrong; marks the session as lost where it is."""
        found = self._named(error, link, operation)
        if operation != "connect":
            lost = isinstance(error, RequestFailed) and (
                error.closed
                or (error.fault is not None and (error.fault.session_lost or error.fault.kind == "disconnected"))
            )
            if lost or found.diagnostic.code == "authentication_required":
                if self._link is link and not link.stop.is_set() and not link.retired:
                    self._failed(found.diagnostic)
                link.retire()
            else:
                self._doubt(link, found.diagnostic)
        return found

    def _doubt(self, link: _Link, diagnostic: Diagnostic) -> None:
        """A request failed. Where the way to the server did, it does not count as connected before the next
        success (B074, B211); the session itself is kept, for it may well be alive."""
        if self._link is link:
            self.diagnostic = diagnostic
            # A child process proves by living that a call was merely too slow; an address proves nothing.
            remote = self.definition.transport != "stdio"
            if link.live and remote and diagnostic.code in ("connection_failed", "timeout"):
                self._state = "failed"

    def _named(self, error: Exception, link: _Link, operation: Operation) -> PiMcpError:
        about = {"operation": operation, "server": self.name, "definition": self.definition}
        if isinstance(error, BaseExceptionGroup):
            # A transport's task group; what counts is the first of the causes that says something.
            for inner in error.exceptions:
                if isinstance(inner, PiMcpError | RequestFailed | NotUnderstood | CannotStart):
                    return self._named(inner, link, operation)
                if isinstance(inner, BaseExceptionGroup):
                    return self._named(inner, link, operation)  # type: ignore[arg-type]
        if isinstance(error, PiMcpError):
            return error
        if isinstance(error, CannotStart):
            return error_for(error.fault, **about)  # type: ignore[arg-type]
        if isinstance(error, NotUnderstood):
            hint = "Look at the server's version and the `protocol` setting."
            reason = f"{error.reason} {UNKNOWN_OUTCOME}" if operation == "call" else error.reason
            return failure("protocol_error", operation, self.name, reason, hint)
        if isinstance(error, RequestFailed):
            if error.fault is not None:
                unsent = operation == "connect" and error.fault.kind == "disconnected"
                fault = (link.faults.fatal if unsent else None) or error.fault
                return error_for(fault, **about)  # type: ignore[arg-type]
            if error.closed:
                return error_for(link.faults.fatal or Fault("disconnected"), **about)  # type: ignore[arg-type]
            diagnostic = diagnose_error(error.code, error.message, error.data, operation=operation, server=self.name)
            if operation == "call" and error.code in NOT_EXECUTED_CODES:
                return NotExecuted(diagnostic)
            return error_of(diagnostic)
        if link.faults.fatal is not None:
            return error_for(link.faults.fatal, **about)  # type: ignore[arg-type]
        logging.getLogger("pi_mcp").debug("%s failed", operation, exc_info=error)
        unknown = "The connection failed in an unknown way."
        return failure(
            "operation_failed",
            operation,
            self.name,
            f"{unknown} {UNKNOWN_OUTCOME}" if operation == "call" else unknown,
            f"`/mcp get {quoted(clean_line(self.name))}` shows more.",
        )

    # shared work

    def _owned(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        task.add_done_callback(_look_at)
        return task

    async def _joined(self, task: asyncio.Task[T]) -> T:
        """Wait for shared work; only the work's own end ends it, not a waiter's cancellation."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _being_cancelled():
                raise failure("connection_failed", "connect", self.name, "The connection was closed.") from None
            raise
        except PiMcpError as error:
            # Each waiter gets an exception of its own: one object raised in several tasks mixes their tracebacks.
            raise type(error)(error.diagnostic) from None


class _Expired(PiMcpError):
    """The start-up limit passed; no second attempt within the same one."""


class _Peer:
    """Answers a server's own requests on behalf of one link."""

    def __init__(self, connection: Connection, link: _Link) -> None:
        self._connection = connection
        self._link = link

    def capabilities(self) -> dict[str, Any]:
        return self._connection.capabilities()

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        return await self._connection._answer(self._link, None, method, params)

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        del params
        if method == "notifications/tools/list_changed":
            self._connection._tools_changed()


def _stated_wait(error: RequestFailed) -> float | None:
    """Seconds after which an overloaded server said that it may be asked again (429 or 503 with Retry-After)."""
    fault = error.fault
    return fault.retry_after if fault is not None and fault.status in (429, 503) else None


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, so that one that nobody waits for any more is not reported as lost."""
    if not task.cancelled():
        task.exception()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _first(*events: asyncio.Event) -> None:
    waiters = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*waiters, return_exceptions=True)


def _roots(directory: Path, args: tuple[str, ...]) -> list[dict[str, str]]:
    """The working directory, and the folders that the person names in the server's own arguments.

    A file server takes the roots in place of its arguments: without these it would lose the folders it was given.
    """
    named = (path for arg in args if (path := Path(arg)).is_absolute() and path.is_dir())
    folders = dict.fromkeys([directory, *named])
    return [{"uri": folder.as_uri(), "name": folder.name or str(folder)} for folder in folders]
