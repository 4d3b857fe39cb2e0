"""What JSON cannot hold stays out of every transport, and whoever waits for it is told."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from pi_mcp.connect.faults import Faults
from pi_mcp.connect.http import Outbox
from pi_mcp.connect.sendable import SendableStream
from pi_mcp.connect.stdio import _Outgoing
from tests.support import run


class Taken:
    """A stream that takes everything."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def send(self, item: Any) -> None:
        self.items.append(item)


@pytest.mark.parametrize(("digits", "sent"), [(4000, True), (5000, False)])
def test_a_number_that_has_no_text_is_not_sent(digits: int, *, sent: bool) -> None:
    async def main() -> None:
        stream, faults = Taken(), Faults()
        message = JSONRPCRequest(jsonrpc="2.0", id=1, method="x", params={"number": 10**digits})
        with contextlib.nullcontext() if sent else pytest.raises(MCPError):
            await SendableStream(stream, faults).send(SessionMessage(message))
        assert bool(stream.items) is sent
        assert (faults.take(1) is None) is sent

    run(main())


@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
def test_for_an_answer_that_cannot_be_written_the_server_gets_an_error(transport: str) -> None:
    """It waited for one that never came. The dispatcher makes an error of what is raised here."""
    nobody: Any = None

    async def main() -> None:
        faults = Faults()
        streams = {
            "stdio": lambda: _Outgoing(nobody, faults),
            "http": lambda: Outbox(nobody, nobody, faults),
            "sse": lambda: SendableStream(nobody, faults),
        }
        answer = JSONRPCResponse(jsonrpc="2.0", id=1, result={"x": object()})
        stream: Any = streams[transport]()
        with pytest.raises(MCPError):
            await stream.send(SessionMessage(answer))
        assert faults.take(1) is None

    run(main())
