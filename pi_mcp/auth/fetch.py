"""Every request that a login makes: metadata, registration, tokens, revocation.

Comes in: a URL that somebody else may have chosen. Goes out: a bounded reply, or a `PiMcpError`. It contacts https
addresses, or http ones of this machine; none that the configured server may not lead to, on any hop, checked after
the DNS and connected to as checked (reports B184, B185). It follows no redirect to another origin and none at all for
a form, and puts no URL's query, body, header or exception text into an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit

from pi_mcp._version import __version__
from pi_mcp.auth.addresses import (
    Reach,
    literal,
    loopback_host,
    origin_of,
    reach_problem,
    shown_url,
    url_problem,
    widest,
)
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.network import packed_again, plain_context, proxy_for, shared_context
from pi_mcp.network.joined import join_writes

if TYPE_CHECKING:
    import httpx2

TIME_LIMIT = 15.0
"""Seconds for one request with its redirects."""
CONNECT_LIMIT = 5.0
"""Seconds per address of a name."""
RESOLVE_LIMIT = 5.0
LARGEST_REPLY = 512 * 1024
"""Bytes after decoding."""
REDIRECTS = 5

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""From a host name and a port to its IP addresses; raises OSError."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Its repr shows neither headers nor body: both may hold secrets."""

    status: int
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    def header_lines(self, name: str) -> tuple[str, ...]:
        return tuple(value for key, value in self.headers if key == name.lower())

    @property
    def media_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body as JSON, whatever its media type says; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


async def system_resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Fetcher:
    """The requests of one configured server's login. It keeps no socket, so there is nothing to close."""

    def __init__(
        self,
        server: str,
        url: str,
        *,
        environ: Mapping[str, str] | None = None,
        resolve: Resolve | None = None,
        time_limit: float = TIME_LIMIT,
        reach: Reach | None = None,
    ) -> None:
        """`server` is the name for messages; `url` the configured address, by which all others are judged.

        `reach` judges them as those that an address of this kind leads to, where there is no configured one.
        """
        self.server = server
        self._url = url
        self._environ = os.environ if environ is None else environ
        self._resolve = resolve or system_resolve
        self._time_limit = time_limit
        self._reach = reach

    # What others ask for

    async def get_json(self, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        """GET, following redirects within the origin. Raises PiMcpError; any status is a reply."""
        return await self.request("GET", url, headers={"Accept": "application/json", **(headers or {})})

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Reply:
        """POST a form and follow nothing: what is sent here is a secret. A redirect is a reply."""
        body = urlencode(form).encode()
        sent = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self.request("POST", url, headers=sent, body=body, follow=False)

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None, *, body_limit: int = LARGEST_REPLY
    ) -> Reply:
        """POST JSON; 307 and 308 are followed within the origin."""
        sent = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
        return await self.request("POST", url, headers=sent, body=json.dumps(value).encode(), limit=body_limit)

    async def check(self, url: str, what: str) -> None:
        """Raise `oauth_failed` unless this address may be contacted or shown in a browser; sends nothing.

        A name that the DNS does not know passes: it is met again when it is used. `what` names the address.
        """
        await self._addresses(url, what, lenient=True)

    # The request

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        follow: bool = True,
        limit: int | None = LARGEST_REPLY,
    ) -> Reply:
        """One request with its redirects, within `TIME_LIMIT`. `limit` None: the body is not read at all."""
        try:
            async with asyncio.timeout(self._time_limit):
                return await self._follow(method, url, headers, body, follow, limit)
        except TimeoutError:
            raise failure(
                "timeout",
                "authenticate",
                self.server,
                f"{shown_url(url)} did not answer within {self._time_limit:g} s.",
                "Look at the network and the proxy; then try again.",
            ) from None

    async def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, follow: bool, limit: int | None
    ) -> Reply:
        for _ in range(REDIRECTS + 1):
            reply = await self._once(method, url, headers, body, limit)
            if not follow or reply.status not in (301, 302, 303, 307, 308):
                return reply
            if method != "GET" and reply.status < 307:
                return reply
            try:
                target = urljoin(url, reply.header("location") or "")
            except ValueError:
                raise self._refused(f"{shown_url(url)} redirects to an address that cannot be read.") from None
            problem = url_problem(target)
            if problem is None and origin_of(target) != origin_of(url):
                problem = "is another origin"
            if problem is not None:
                raise self._refused(
                    f"{shown_url(url)} redirects to {shown_url(target)}, which {problem}; that is not followed."
                )
            url = target
        raise self._refused(f"{shown_url(url)} redirects more than {REDIRECTS} times.")

    async def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int | None
    ) -> Reply:
        import httpx2

        addresses = await self._addresses(url, "The address", lenient=self._proxy(url) is not None)
        transport = await self._transport(url)
        own = {"User-Agent": f"pi-mcp/{__version__}", "Cache-Control": "no-cache", **headers}
        try:
            target = httpx2.URL(url).copy_with(fragment=None)
            host = target.netloc.decode("ascii")
            # Through a proxy the name goes out as it is; otherwise the very address that was checked is used.
            choices = [None] if self._proxy(url) is not None else addresses
            response: httpx2.Response | None = None
            for position, address in enumerate(choices):
                request = httpx2.Request(
                    method,
                    target if address is None else target.copy_with(host=address),
                    headers={"Host": host, **own},
                    content=body,
                    extensions={
                        "timeout": {
                            "connect": CONNECT_LIMIT,
                            "read": self._time_limit,
                            "write": self._time_limit,
                            "pool": None,
                        },
                        "sni_hostname": target.host,
                    },
                )
                try:
                    response = await transport.handle_async_request(request)
                    break
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    # Not one byte of the request is out: the next address of the same name may do.
                    if position + 1 == len(choices) or _is_tls(error):
                        raise
            if response is None:
                raise self._unreachable(url)
            try:
                response.request = request
                content = b"" if limit is None else await self._read(response, url, limit)
            finally:
                await response.aclose()
        except (httpx2.TransportError, httpx2.InvalidURL, OSError, ValueError) as error:
            raise self._explained(error, url) from None
        finally:
            await transport.aclose()
        lines = tuple((name.lower(), value) for name, value in response.headers.multi_items())
        return Reply(response.status_code, url, lines, content)

    async def _read(self, response: httpx2.Response, url: str, limit: int) -> bytes:
        if packed_again(response.headers.get("content-encoding")):
            raise self._refused(f"The answer of {shown_url(url)} is packed more than once.")
        size, parts = 0, []
        async for part in response.aiter_bytes():
            size += len(part)
            if size > limit:
                raise self._refused(f"The answer of {shown_url(url)} is larger than {limit // 1024} KiB.")
            parts.append(part)
        return b"".join(parts)

    # Addresses

    async def _addresses(self, url: str, what: str, *, lenient: bool) -> list[str]:
        """The checked addresses of a URL; empty where `lenient` and the DNS does not know the name."""
        problem = url_problem(url)
        if problem is not None:
            raise self._refused(f"{what} {shown_url(url)} {problem}.")
        parts = urlsplit(url)
        host = parts.hostname or ""
        spelled = literal(host)
        if spelled is not None:
            addresses = [spelled]
        else:
            try:
                async with asyncio.timeout(RESOLVE_LIMIT):
                    addresses = await self._resolve(host, origin_of(url)[2])
            except (OSError, UnicodeError, TimeoutError):
                if not lenient:
                    raise self._unreachable(url) from None
                addresses = []
        own = await self._own_reach()
        problem = reach_problem(own, addresses)
        if problem is not None:
            raise self._refused(f"{what} {shown_url(url)} {problem}.")
        if parts.scheme.lower() == "http" and any(not loopback_host(address) for address in addresses):
            # By its name it is this machine, by the DNS it is not.
            raise self._refused(f"{what} {shown_url(url)} is not https.")
        return addresses

    async def _own_reach(self) -> Reach:
        """The kind of the configured server's own address; a name that the DNS does not know counts as public."""
        if self._reach is None:
            host = urlsplit(self._url).hostname or ""
            spelled = literal(host)
            if spelled is not None:
                self._reach = widest([spelled])
            elif loopback_host(host):
                self._reach = "loopback"
            else:
                try:
                    async with asyncio.timeout(RESOLVE_LIMIT):
                        self._reach = widest(await self._resolve(host, origin_of(self._url)[2]))
                except (OSError, UnicodeError, TimeoutError):
                    return "public"
        return self._reach

    def _proxy(self, url: str) -> str | None:
        scheme, host, port = origin_of(url)
        return proxy_for(scheme, host, port, self._environ)

    async def _transport(self, url: str) -> httpx2.AsyncHTTPTransport:
        import httpx2

        proxy_url = self._proxy(url)
        secure = url.lower().startswith("https:") or (proxy_url or "").startswith("https:")
        try:
            context = await shared_context(self._environ) if secure else plain_context()
        except OSError:
            raise failure(
                "connection_failed",
                "authenticate",
                self.server,
                "SSL_CERT_FILE or SSL_CERT_DIR holds no usable certificates.",
                "Correct the variable.",
            ) from None
        try:
            proxy = None
            if proxy_url is not None:
                proxy = httpx2.Proxy(proxy_url, ssl_context=context if proxy_url.startswith("https:") else None)
            return join_writes(httpx2.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy))
        except (ValueError, ImportError, httpx2.InvalidURL):
            raise failure(
                "connection_failed",
                "authenticate",
                self.server,
                "The proxy's address or kind is not supported.",
                "Look at HTTP_PROXY and HTTPS_PROXY.",
            ) from None

    # Failures

    def _refused(self, message: str) -> PiMcpError:
        return failure(
            "oauth_failed",
            "authenticate",
            self.server,
            message,
            "The server or its authorization server is set up wrongly, or means harm; tell whoever runs it.",
        )

    def _unreachable(self, url: str) -> PiMcpError:
        return failure(
            "connection_failed",
            "authenticate",
            self.server,
            f"{shown_url(url)} could not be reached.",
            "Look at the network, the DNS and the proxy.",
        )

    def _explained(self, error: Exception, url: str) -> PiMcpError:
        import httpx2

        if _is_tls(error):
            return failure(
                "connection_failed",
                "authenticate",
                self.server,
                f"The TLS connection to {shown_url(url)} could not be made.",
                "Look at the certificate, the clock, and SSL_CERT_FILE for a private CA.",
            )
        if isinstance(error, httpx2.ProxyError):
            return failure(
                "connection_failed",
                "authenticate",
                self.server,
                f"The proxy did not connect to {shown_url(url)}.",
                "Look at HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
            )
        if isinstance(error, httpx2.TimeoutException):
            return failure(
                "timeout", "authenticate", self.server, f"{shown_url(url)} did not answer in time.", "Try again."
            )
        return self._unreachable(url)


def _is_tls(error: BaseException | None) -> bool:
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
        seen += 1
    return False
