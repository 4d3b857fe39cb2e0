"""A server's questions during a request, where client and server are of different eras.

In the handshake era a server sends a request of its own while it works; since 2026-07-28 it answers that input is
required, and the client sends its request again with the answers. Comes in: one of the two. Goes out: the other. A
call whose client has been told to come again is parked here, alive, for a bounded time; only the same client can go on
with it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pi_mcp.plugin import Forwarding, RpcError
from pi_mcp.server import rpc
from pi_mcp.server.clients import MOST_QUESTIONS, Exchange

PARKED_LIMIT = 300.0
"""Seconds that a call waits for its client to come again."""
MOST_PARKED = 1000
MOST_OF_ONE = 100
"""Calls that wait at a time, of all and of one credential: nobody takes the places of the others."""
MAX_ROUNDS = 10
"""Rounds of one request of a client that does not know rounds."""
_PREFIX = "pi-mcp:"

Call = Callable[[Forwarding], Awaitable[dict[str, Any]]]
About = Callable[[], str]
"""What is asked for; called only where it is compared."""


class _Parked:
    def __init__(self, owner: str, credential: str, about: About) -> None:
        self.owner = owner
        self.credential = credential
        self.about = about
        self.exchange: Exchange | None = None
        self.task: asyncio.Task[dict[str, Any]] | None = None
        self.questions: dict[str, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self.news = asyncio.Event()
        self.expiry: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if len(self.questions) >= MOST_QUESTIONS:
            raise RpcError(rpc.INVALID_REQUEST, "Too many questions wait for an answer")
        key = f"input-{next(self._numbers)}"
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.questions[key] = {"method": method, "params": params}, answer
        self.news.set()
        try:
            return await answer
        finally:
            self.questions.pop(key, None)

    async def asks(self) -> None:
        """Wait for a question; as a task, which begins when those that were just answered have been taken away."""
        while not self.questions:
            self.news.clear()
            await self.news.wait()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        if self.exchange is not None:
            self.exchange.notify(method, params)

    def end(self) -> None:
        """Nobody waits for the call any more, and nobody answers what was asked meanwhile."""
        if self.task is not None:
            self.task.cancel()
        for _, answer in self.questions.values():
            if not answer.done():
                answer.set_exception(RpcError(rpc.UNREACHABLE, "Nobody answers any more"))
                answer.exception()


class Rounds:
    """The parked calls of a gateway."""

    def __init__(self) -> None:
        self._parked: dict[str, _Parked] = {}
        self.none = asyncio.Event()
        """Set while no call waits for its client to come again."""
        self.none.set()

    async def start(self, exchange: Exchange, about: About, call: Call) -> dict[str, Any]:
        """Make a call of a server of the handshake era for a client that knows rounds: the result, or a round.

        `about` says what is asked for, for when the client comes again.
        """
        parked = _Parked(exchange.session.key, exchange.session.owner, about)
        request = exchange.forwarding(parked.notify, parked.ask)

        async def made() -> dict[str, Any]:
            return await call(request)

        parked.task = asyncio.create_task(made())
        parked.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._turn(parked, exchange)

    def knows(self, state: object) -> bool:
        return isinstance(state, str) and state.startswith(_PREFIX)

    async def resume(self, exchange: Exchange, about: About, state: str, answers: object) -> dict[str, Any]:
        """Go on with a parked call. Raises RpcError where there is none of this client under that state.

        What was permitted was this request: under the name of another one the call does not go on.
        """
        parked = self._parked.get(state)
        if parked is None or parked.owner != exchange.session.key or parked.about() != about():
            raise RpcError(rpc.INVALID_PARAMS, "The request state is unknown or has expired")
        self._taken(state)
        for key, answer in (answers if isinstance(answers, dict) else {}).items():
            question = parked.questions.get(key)
            if question is not None and isinstance(answer, dict) and not question[1].done():
                question[1].set_result(answer)
        return await self._turn(parked, exchange)

    async def _turn(self, parked: _Parked, exchange: Exchange) -> dict[str, Any]:
        task = parked.task
        if task is None:
            raise TypeError("a parked call has a task")
        parked.exchange = exchange
        news = asyncio.create_task(parked.asks())
        try:
            await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            parked.end()
            await asyncio.wait({task}, timeout=1.0)
            raise
        finally:
            news.cancel()
            parked.exchange = None
        if task.done():
            parked.end()
            return await task
        of_one = sum(one.credential == parked.credential for one in self._parked.values())
        if len(self._parked) >= MOST_PARKED or of_one >= MOST_OF_ONE:
            parked.end()
            raise RpcError(rpc.INTERNAL_ERROR, "Too many calls wait for input")
        state = _PREFIX + secrets.token_urlsafe(24)
        self._parked[state] = parked
        self.none.clear()
        parked.expiry = asyncio.get_running_loop().call_later(PARKED_LIMIT, self._expire, state)
        return {
            "resultType": "input_required",
            "inputRequests": {key: question for key, (question, _) in parked.questions.items()},
            "requestState": state,
        }

    def _taken(self, state: str) -> _Parked:
        parked = self._parked.pop(state)
        if parked.expiry is not None:
            parked.expiry.cancel()
        if not self._parked:
            self.none.set()
        return parked

    def _expire(self, state: str) -> None:
        self._taken(state).end()

    async def close(self) -> None:
        every = [self._taken(state) for state in list(self._parked)]
        for parked in every:
            parked.end()
        tasks = [parked.task for parked in every if parked.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)


async def asked_in_rounds(
    call: Callable[[Mapping[str, Any], Forwarding], Awaitable[dict[str, Any]]],
    params: Mapping[str, Any],
    exchange: Exchange,
) -> dict[str, Any]:
    """The final result of a server that answers in rounds, for a client that is asked by requests instead."""
    given = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    sent: Mapping[str, Any] = given
    wait = 0.05
    for _ in range(MAX_ROUNDS + 1):
        request = exchange.forwarding()
        result = await call(sent, request)
        if result.get("resultType") != "input_required":
            return result
        answers: dict[str, Any] = {}
        asked = result.get("inputRequests")
        for key, question in (asked if isinstance(asked, dict) else {}).items():
            method = question.get("method") if isinstance(question, dict) else None
            if not isinstance(method, str):
                raise RpcError(rpc.INTERNAL_ERROR, "The server asked for something that cannot be read")
            inner = question.get("params")
            answers[key] = await request.ask(method, inner if isinstance(inner, dict) else {})
        if not answers:
            await asyncio.sleep(wait)
            wait = min(wait * 2, 0.25)
        sent = {**given, "inputResponses": answers} if answers else dict(given)
        if isinstance(result.get("requestState"), str):
            sent = {**sent, "requestState": result["requestState"]}
    raise RpcError(rpc.INTERNAL_ERROR, f"The server asked for input more than {MAX_ROUNDS} times")
