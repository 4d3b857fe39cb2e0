"""Cold discovery: twelve servers whose `tools/list` takes a second, four at a time, held against the ideal 3 s."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from measure import Options, Row, at_most
from setting import slow

SERVERS = 12
AT_ONCE = 4
SECONDS = 1.0


def cold(options: Options, home: Path) -> list[Row]:
    seconds = 0.1 if options.quick else SECONDS
    ideal = SERVERS / AT_ONCE * seconds
    import mcp  # noqa: F401 -- its import is a figure of its own

    taken = [asyncio.run(_once(home, seconds)) for _ in range(options.times(5, 1))]
    median = statistics.median(taken)
    ratio = median / ideal
    return [
        Row(
            f"cold discovery, {SERVERS} servers with {seconds:g} s per `tools/list`",
            f"{median:.2f} s",
            f"ideal, {AT_ONCE} at once: {ideal:.2f} s",
            f"{ratio:.2f}×",
            "≤ 1.15×",
            None if options.quick else at_most(ratio, 1.15),
        )
    ]


async def _once(home: Path, seconds: float) -> float:
    """From the question to all catalogs in hand, nothing known before."""
    from pi_mcp import Plugin
    from pi_mcp.config import configuration_of

    configuration = configuration_of({f"slow-{number}": slow(seconds) for number in range(SERVERS)}, cwd=home)
    with tempfile.TemporaryDirectory(dir=home) as cache:
        async with Plugin(configuration, state_dir=home / "state", cache_dir=Path(cache)) as plugin:
            session = plugin.session("benchmark", keep=False)
            began = time.perf_counter()
            answer = await session.search("thing number", load=False)
            taken = time.perf_counter() - began
            assert not answer.not_searched, answer.text
    return taken
