"""Requests of a login: which addresses, which redirects, how much and how long; no secret in any error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pi_mcp.auth.addresses import loopback_host, reach_of, reach_problem, shown_url, url_problem, widest
from pi_mcp.auth.fetch import Fetcher, Reply
from pi_mcp.errors import PiMcpError
from tests.auth_server import AuthServer, free_port
from tests.support import run

SECRET = "planted-7c6b5a"


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("10.0.0.5", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("192.0.2.1", "private"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("2002:0a00:0005::1", "private"),
        ("0.0.0.0", "unusable"),
        ("::", "unusable"),
        ("224.0.0.1", "unusable"),
        ("fd00:ec2::254", "unusable"),
        ("::127.0.0.1", "loopback"),
        ("::169.254.169.254", "link-local"),
        ("::ffff:0:127.0.0.1", "loopback"),
        ("64:ff9b:1::1", "private"),
        ("fec0::1", "private"),
        ("192.0.0.192", "private"),
        ("100.100.100.200", "unusable"),
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
    ],
)
def test_an_address_is_judged_by_what_it_reaches(address: str, kind: str) -> None:
    assert reach_of(address) == kind


@pytest.mark.parametrize(
    ("server", "target", "allowed"),
    [
        ("public", "public", True),
        ("public", "private", False),
        ("public", "loopback", False),
        ("public", "link-local", False),
        ("private", "private", True),
        ("private", "public", True),
        ("private", "loopback", False),
        ("private", "link-local", False),
        ("loopback", "loopback", True),
        ("loopback", "private", True),
        ("loopback", "public", True),
        ("loopback", "link-local", False),
        ("link-local", "link-local", True),
    ],
)
def test_a_server_leads_to_its_own_kind_of_address_or_to_public_ones(server: Any, target: str, allowed: bool) -> None:
    address = {"public": "8.8.8.8", "private": "10.0.0.5", "loopback": "::1", "link-local": "169.254.169.254"}[target]
    assert (reach_problem(server, [address]) is None) is allowed
    # One address of a name is enough to refuse it.
    assert (reach_problem(server, ["8.8.8.8", address]) is None) is allowed


@pytest.mark.parametrize(
    "url",
    [
        "http://example.test/",
        "http://10.0.0.5/",
        "https://user:pass@example.test/",
        "https://",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://example.test/a b",
        "https://example.test:99999/",
        "https://[::1/",
        "/relative",
        "",
        "https://example.test/\x9b31m",
        "https://example.test/\u202e",
        "https://example.test/\ud800",
    ],
)
def test_an_address_that_is_not_https_or_of_this_machine_is_not_used(url: str) -> None:
    assert url_problem(url)


@pytest.mark.parametrize(
    "url", ["https://example.test/x?y", "http://127.0.0.1:1/", "http://localhost/", "http://[::1]:8080/a"]
)
def test_https_and_this_machine_are_used(url: str) -> None:
    assert url_problem(url) is None


def test_small_rules_of_addresses() -> None:
    assert loopback_host("a.localhost")
    assert not loopback_host("localhost.example.test")
    assert widest(["127.0.0.1", "::1"]) == "loopback"
    assert widest(["127.0.0.1", "8.8.8.8"]) == "public"
    assert widest([]) == "public"
    assert shown_url(f"https://u:{SECRET}@h.test/p?t={SECRET}#{SECRET}") == "https://h.test/p"


def test_a_redirect_within_the_origin_is_followed_for_metadata_and_not_for_a_form() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/a"] = {"status": 302, "headers": {"Location": "/b"}}
            server.override["/b"] = {"json": {"x": 1}}
            server.override["/circle"] = {"status": 307, "headers": {"Location": "/circle"}}
            server.override["/c"] = {"status": 308, "headers": {"Location": "/b"}}
            fetcher = Fetcher("s", server.url, environ={})
            assert (await fetcher.get_json(server.origin + "/a")).json() == {"x": 1}
            assert (await fetcher.post_json(server.origin + "/a", {})).status == 302
            assert (await fetcher.post_json(server.origin + "/c", {})).json() == {"x": 1}
            before = len(server.at("/b"))
            assert (await fetcher.post_form(server.origin + "/c", {"code": SECRET})).status == 308
            assert len(server.at("/b")) == before
            with pytest.raises(PiMcpError, match="more than 5 times"):
                await fetcher.get_json(server.origin + "/circle")

    run(main())


@pytest.mark.parametrize(
    "location", ["http://localhost:{port}/b", "//evil.example.test/b", "http://127.0.0.1:1/b", "x:y", "http://["]
)
def test_a_redirect_to_another_origin_is_not_followed(location: str) -> None:
    async def main() -> None:
        with AuthServer() as server:
            target = location.replace("{port}", str(server.port))
            server.override["/a"] = {"status": 302, "headers": {"Location": f"{target}?code={SECRET}"}}
            with pytest.raises(PiMcpError) as error:
                await Fetcher("s", server.url, environ={}).get_json(server.origin + "/a")
            assert error.value.diagnostic.code == "oauth_failed"
            assert SECRET not in str(error.value)

    run(main())


def test_a_reply_is_bounded_in_size_and_time() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/big"] = {"text": "x" * 600_000}
            server.override["/slow"] = {"sleep": 3, "text": ""}
            fetcher = Fetcher("s", server.url, environ={}, time_limit=0.3)
            with pytest.raises(PiMcpError) as error:
                await fetcher.get_json(server.origin + "/slow")
            assert error.value.diagnostic.code == "timeout"
            fetcher = Fetcher("s", server.url, environ={})
            with pytest.raises(PiMcpError, match="larger than 512 KiB"):
                await fetcher.get_json(server.origin + "/big")

    run(main())


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,identity,deflate"])
def test_a_reply_that_is_packed_more_than_once_is_not_unpacked(coding: str) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/a"] = {"headers": {"Content-Encoding": coding}, "text": "x" * 100}
            with pytest.raises(PiMcpError, match="packed more than once"):
                await Fetcher("s", server.url, environ={}).get_json(server.origin + "/a")

    run(main())


def test_a_request_can_be_cancelled_at_once() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/slow"] = {"sleep": 2, "text": ""}
            task = asyncio.create_task(Fetcher("s", server.url, environ={}).get_json(server.origin + "/slow"))
            await asyncio.sleep(0.2)
            task.cancel()
            _, pending = await asyncio.wait({task}, timeout=1)
            assert not pending
            assert task.cancelled()

    run(main())


def test_errors_name_the_address_without_its_query_and_nothing_that_was_sent() -> None:
    async def main() -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}/token?key={SECRET}"
        fetcher = Fetcher("s", url, environ={})
        with pytest.raises(PiMcpError) as error:
            await fetcher.post_form(url, {"code": SECRET}, {"Authorization": SECRET})
        assert error.value.diagnostic.code == "connection_failed"
        assert f"http://127.0.0.1:{port}/token could not be reached" in error.value.diagnostic.message
        assert SECRET not in str(error.value) + repr(error.value) + str(error.value.__context__)
        with pytest.raises(PiMcpError):
            await Fetcher("s", "https://nowhere.invalid/", environ={}).get_json(f"https://nowhere.invalid/{SECRET}?x")

    run(main())


def test_a_reply_shows_nothing_in_its_repr() -> None:
    reply = Reply(200, f"https://h/{SECRET}", (("set-cookie", SECRET),), SECRET.encode())
    assert SECRET not in repr(reply)


def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    """A name that changes between check and use (DNS rebinding) gains nothing."""

    async def main() -> None:
        with AuthServer() as server:
            server.override["/x"] = {"json": {}}
            answers = [["127.0.0.1"], ["10.0.0.5"]]

            async def resolve(host: str, port: int) -> list[str]:
                assert host == "changing.localhost"
                return answers.pop(0)

            fetcher = Fetcher("s", server.url, environ={}, resolve=resolve)
            reply = await fetcher.get_json(f"http://changing.localhost:{server.port}/x")
            assert reply.status == 200
            assert server.at("/x")[0].headers["host"] == f"changing.localhost:{server.port}"
            assert len(answers) == 1
            # By its name it is this machine, by the DNS it is not.
            with pytest.raises(PiMcpError, match="is not https"):
                await fetcher.get_json(f"http://changing.localhost:{server.port}/x")

    run(main())


def test_the_next_address_of_a_name_is_tried_when_the_first_does_not_answer() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/x"] = {"json": {}}

            async def resolve(host: str, port: int) -> list[str]:
                return ["127.0.0.3", "127.0.0.1"]

            fetcher = Fetcher("s", server.url, environ={}, resolve=resolve)
            assert (await fetcher.get_json(f"http://two.localhost:{server.port}/x")).status == 200

    run(main())


def test_a_proxy_of_the_environment_is_used_and_gets_the_name() -> None:
    async def main() -> None:
        seen: list[bytes] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as one:
            port = one.sockets[0].getsockname()[1]
            environ = {"https_proxy": f"http://me:{SECRET}@127.0.0.1:{port}"}

            async def unknown(host: str, port: int) -> list[str]:
                raise OSError

            fetcher = Fetcher("s", "https://public.example.test/mcp", environ=environ, resolve=unknown)
            with pytest.raises(PiMcpError) as error:
                await fetcher.get_json("https://public.example.test/x")
            assert seen[0].startswith(b"CONNECT public.example.test:443 ")
            assert "proxy" in error.value.diagnostic.message.lower()
            assert SECRET not in str(error.value)
            # A proxy is no way round the rules.
            with pytest.raises(PiMcpError, match="link-local"):
                await fetcher.get_json("https://169.254.169.254/x")
            assert len(seen) == 1

    run(main())
