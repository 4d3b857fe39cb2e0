"""One HTTP request to one configured server: headers, cookies, proxy, TLS and redirects.

Comes in: a method, headers and a body. Goes out: the server's answer with its body unread, or `RequestFailed`
with the facts. It never follows a redirect to another origin or out of TLS, never turns certificate checks off,
never sends a request again after a byte of it may have arrived, and puts no address with its query, no header
and no exception text into a fault.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from pi_mcp._version import __version__
from pi_mcp.connect.faults import Fault
from pi_mcp.connect.messages import TooLarge
from pi_mcp.errors import PiMcpError
from pi_mcp.network import certificate_fault, packed_again, plain_context, proxy_for, shared_context
from pi_mcp.network.joined import join_writes
from pi_mcp.text import Redactor, clean_line

if TYPE_CHECKING:
    import httpx2

LONGEST_SILENCE = 660.0
"""Seconds without a byte on a request's response. Above the cap of any call, so that it never ends one early
(report B101); it only frees the socket of a request that nobody waits for."""
REDIRECTS = 5
KEEPALIVE = 4.0
"""Seconds that an idle socket is kept: less than the five after which most servers close theirs, since a
request that crosses the closing is lost and its outcome unknown."""

_MOST_COOKIES = 100

# What the transport itself decides; a configured header of this name would break the protocol or the framing.
_OWN_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"}
    | {"expect", "accept", "content-type", "last-event-id"}
    | {"mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"}
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE_VALUE = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


class Credentials(Protocol):
    """Headers that may change while a connection lives: an OAuth token, a header from a command."""

    async def headers(self) -> Mapping[str, str]:
        """The headers to send now."""

    async def refused(self, status: int, challenges: tuple[str, ...]) -> bool:
        """After a 401: True when `headers` now gives something new, so that the request is sent once more.

        Raises PiMcpError where it is known what the person has to do.
        """

    def still_refused(self, headers: Mapping[str, str]) -> None:
        """The request was sent once more with these, and refused again."""

    def denied(self, challenges: tuple[str, ...]) -> None:
        """After a 403: what the login lacks. The request is never sent again for it (report B134)."""

    def proof(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Further headers for this one request alone, which is sent with `headers` of this login (RFC 9449)."""

    def answered(self, url: str, status: int, nonce: str | None, challenges: tuple[str, ...]) -> bool:
        """After every answer: True where the server only wanted the nonce that it brought, so that the request,
        which it did not execute, is sent once more.
        """


class RequestFailed(Exception):
    """Why this request got no answer."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.kind)
        self.fault = fault


def header_problem(name: str, value: str) -> str | None:
    """Why a configured header cannot be sent, in a sentence without the value; None when it can."""
    if not _TOKEN.fullmatch(name):
        return "A header name holds characters that HTTP does not allow."
    if _UNSAFE_VALUE.search(value) or value != value.strip("\r\n"):
        return f"The value of header `{name}` holds a line break or a control character."
    return None


def owned_by_transport(name: str) -> bool:
    """Whether the transport sets this header itself, so that a configured one is left out."""
    lower = name.lower()
    return lower in _OWN_HEADERS or lower.startswith("mcp-param-")


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds of a `Retry-After` header, given as seconds or as a date (RFC 9110 §10.2.3); None if unreadable."""
    if not value:
        return None
    value = value.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    base = datetime.now(UTC).timestamp() if now is None else now
    return max(0.0, round(moment.timestamp() - base, 3))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and everything that led to it; groups are opened."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)
        waiting.extend((current.__cause__, current.__context__))


def fault_of(
    error: BaseException, *, sent: bool, address: str, answered: bool = False, proxy: str | None = None
) -> Fault:
    """What a network error means, in our words. `sent`: a byte of the request may have left this machine. `proxy`: host
    and port of the one in between, which is then the only one that anybody tried to reach."""
    import httpx2

    executed: Any = "unknown" if sent else "no"
    causes = list(_causes(error))

    def fault(kind: str, detail: str = address) -> Fault:
        return Fault(kind, executed=executed, detail=detail)

    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return fault("tls", f"{address}: {certificate_fault(cause.verify_code)}")
    if isinstance(error, httpx2.ProxyError):
        return fault("proxy")
    if not sent:
        for cause in causes:
            if proxy is not None and isinstance(cause, socket.gaierror | ConnectionRefusedError):
                return fault("proxy", proxy)
            if isinstance(cause, socket.gaierror):
                return fault("dns", address.rpartition(":")[0])
            if isinstance(cause, ConnectionRefusedError):
                return fault("refused")
            if isinstance(cause, ssl.SSLError):
                plain = cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
                words = "the port does not speak TLS" if plain else "the handshake failed"
                return fault("tls", f"{address}: {words}")
        if proxy is not None and isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
            return fault("proxy", proxy)
        if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
            return fault("connect_timeout")
        if isinstance(error, httpx2.NetworkError | OSError):
            return fault("unreachable")
    if isinstance(error, httpx2.TimeoutException):
        return fault("no_response")
    if isinstance(error, httpx2.DecodingError):
        return fault("malformed")
    # h11 says "Server disconnected" for a clean close; anything else before the headers is no HTTP at all.
    if isinstance(error, httpx2.RemoteProtocolError) and not answered and "disconnected" not in str(error):
        return fault("not_mcp", f"{address} does not speak HTTP")
    return fault("reset")


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where an answer points, and whether a request with credentials may follow."""

    status: int
    location: httpx2.URL | None
    refusal: str | None


def judge_redirect(sent: httpx2.URL, status: int, location: str | None) -> Redirect | None:
    """Whether a redirect is followed: 307 and 308 within the origin, or from http to https on default ports.

    None for an answer that is no redirect. `refusal` names both addresses without userinfo and query
    (reports B058, B059, B061).
    """
    if status not in (301, 302, 303, 307, 308):
        return None
    import httpx2

    try:
        target = sent.join(location or "")
    except (httpx2.InvalidURL, ValueError):
        target = None
    if not location or target is None or target.scheme not in ("http", "https") or not target.host:
        return Redirect(status, None, f"HTTP {status} from {shown(sent)}, without a usable address")
    ways = f"HTTP {status} from {shown(sent)} to {shown(target)}"
    same = (sent.scheme, sent.host, sent.port) == (target.scheme, target.host, target.port)
    upgrade = (
        (sent.scheme, target.scheme) == ("http", "https")
        and sent.host == target.host
        and sent.port is None
        and target.port is None
    )
    refusal = None
    if (sent.scheme, target.scheme) == ("https", "http"):
        better = shown(target.copy_with(scheme="https"))
        refusal = f"{ways}: credentials would go out in clear; try {better} as `url`"
    elif not (same or upgrade):
        refusal = f"{ways}: another origin"
    elif status < 307:
        refusal = f"{ways}: a sign-in page? Check `url` and the login"
    elif target.userinfo and target.userinfo != sent.userinfo:
        refusal = f"{ways}: the address brings a login of its own"
    return Redirect(status, target, refusal)


def shown(url: httpx2.URL) -> str:
    """An address for a message: without userinfo, query and fragment, which may hold secrets."""
    return clean_line(str(url.copy_with(userinfo=b"", query=None, fragment=None)), 120)


class Sender:
    """Sends requests to the configured address: headers, cookies, proxy, TLS, redirects."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        environ: Mapping[str, str],
        redactor: Redactor,
        connect_timeout: float,
        credentials: Credentials | None = None,
    ) -> None:
        """`url` and `headers` are checked and revealed; `connect_timeout` in seconds.

        Raises httpx2.InvalidURL.
        """
        import httpx2

        parsed = httpx2.URL(url)
        self._headers = {name: value for name, value in headers.items() if not owned_by_transport(name)}
        self.url = parsed.copy_with(userinfo=b"", fragment=None)
        self._environ = environ
        self._redactor = redactor
        self._connect_timeout = connect_timeout
        self._credentials = credentials
        self._cookies = httpx2.Cookies()
        self._inner: dict[tuple[str, str | None], httpx2.AsyncHTTPTransport] = {}

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return self._address(self.url)

    @staticmethod
    def _address(url: httpx2.URL) -> str:
        host = f"[{url.host}]" if ":" in url.host else url.host
        return clean_line(f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}", 120)

    async def send(
        self,
        method: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
        *,
        url: httpx2.URL | None = None,
        silence: float | None = LONGEST_SILENCE,
    ) -> httpx2.Response:
        """The answer to one request, its body unread. Raises `RequestFailed`; whoever gets it closes it.

        A 401 is shown to the credentials once, and the request sent again where these changed: the answer
        proves that it was not executed.
        """
        headers = list(headers)
        login = await self._login()
        response = await self._proven(method, login, headers, body, url or self.url, silence)
        if response.status_code == 403 and self._credentials is not None:
            self._credentials.denied(tuple(response.headers.get_list("www-authenticate")))
        if response.status_code != 401 or self._credentials is None:
            return response
        try:
            # Another request may have been refused, and the login renewed, while this one was under way.
            renewed = await self._login() != login or await self._credentials.refused(
                401, tuple(response.headers.get_list("www-authenticate"))
            )
            login = await self._login()
        except PiMcpError as error:
            await response.aclose()
            raise _not_logged_in(error) from None
        except BaseException:
            await response.aclose()
            raise
        if not renewed:
            return response
        await response.aclose()
        response = await self._proven(method, login, headers, body, url or self.url, silence)
        if response.status_code == 401:
            self._credentials.still_refused(login)
        elif response.status_code == 403:
            self._credentials.denied(tuple(response.headers.get_list("www-authenticate")))
        return response

    async def _login(self) -> Mapping[str, str]:
        if self._credentials is None:
            return {}
        try:
            return dict(await self._credentials.headers())
        except PiMcpError as error:
            raise _not_logged_in(error) from None

    async def _proven(
        self,
        method: str,
        login: Mapping[str, str],
        headers: list[tuple[str, str]],
        body: bytes | None,
        url: httpx2.URL,
        silence: float | None,
    ) -> httpx2.Response:
        """The answer to a request with this login; sent again, once, where only a server's nonce was missing."""
        response = await self._follow(method, login, headers, body, url, silence)
        if self._credentials is None:
            return response
        challenges = tuple(response.headers.get_list("www-authenticate"))
        nonce = response.headers.get("dpop-nonce")
        if not self._credentials.answered(str(response.request.url), response.status_code, nonce, challenges):
            return response
        await response.aclose()
        response = await self._follow(method, login, headers, body, url, silence)
        self._credentials.answered(
            str(response.request.url), response.status_code, response.headers.get("dpop-nonce"), ()
        )
        return response

    async def _follow(
        self,
        method: str,
        login: Mapping[str, str],
        headers: list[tuple[str, str]],
        body: bytes | None,
        url: httpx2.URL,
        silence: float | None,
    ) -> httpx2.Response:
        for _ in range(REDIRECTS + 1):
            proof = self._credentials.proof(method, str(url), login) if self._credentials is not None else {}
            sent = [*login.items(), *proof.items(), *headers]
            response = await self._once(method, sent, body, url, silence)
            redirect = judge_redirect(url, response.status_code, response.headers.get("location"))
            if redirect is None:
                return response
            await response.aclose()
            if redirect.refusal is not None or redirect.location is None:
                raise self._failed(
                    Fault("redirect", status=redirect.status, executed="no", detail=str(redirect.refusal))
                )
            if redirect.status == 308 and url == self.url:
                self.url = redirect.location  # permanent: spare the detour from now on
            url = redirect.location
        raise self._failed(Fault("redirect", executed="no", detail=f"more than {REDIRECTS} times, in a circle"))

    async def _once(
        self,
        method: str,
        headers: list[tuple[str, str]],
        body: bytes | None,
        url: httpx2.URL,
        silence: float | None,
    ) -> httpx2.Response:
        import httpx2

        sent = False

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            nonlocal sent
            if event.endswith("send_request_headers.started"):
                sent = sent or getattr(info.get("request"), "method", b"") != b"CONNECT"

        # What a cache on the way answers is not what the server says now (B157).
        own = [("User-Agent", f"pi-mcp/{__version__}"), ("Cache-Control", "no-cache")]
        # By lower-case name, the last one counts: setting them one by one in `Headers` looks through all each time.
        last = {name.lower(): (name, value.strip(" \t")) for name, value in [*own, *self._headers.items(), *headers]}
        merged = httpx2.Headers(list(last.values()), encoding="utf-8")
        request = httpx2.Request(
            method,
            url,
            headers=merged,
            content=body,
            extensions={
                "trace": trace,
                "timeout": {
                    "connect": self._connect_timeout,
                    "read": silence,
                    "write": LONGEST_SILENCE,
                    "pool": None,
                },
            },
        )
        if self._cookies.jar:  # an empty one costs a tenth of a millisecond
            self._cookies.set_cookie_header(request)
        transport = await self._transport(url)
        try:
            response = await transport.handle_async_request(request)
        except (httpx2.TransportError, OSError, ssl.SSLError) as error:
            via = self._proxy(url)
            proxy = None if via is None else self._address(httpx2.URL(via))
            raise self._failed(fault_of(error, sent=sent, address=self._address(url), proxy=proxy)) from None
        except httpx2.InvalidURL:
            raise self._failed(Fault("not_mcp", executed="no", detail="the address is not usable")) from None
        response.request = request
        if packed_again(response.headers.get("content-encoding")):
            await response.aclose()
            raise self._failed(Fault("malformed", status=response.status_code, detail="packed more than once"))
        if "set-cookie" in response.headers:
            self._keep_cookies(response)
        return response

    def _keep_cookies(self, response: httpx2.Response) -> None:
        """Python's jar warns, with a traceback, of lines that it cannot read, and keeps what no request can carry."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cookies.extract_cookies(response)
        jar = self._cookies.jar
        for cookie in list(jar):
            if not f"{cookie.name}={cookie.value}".isascii():
                jar.clear(cookie.domain, cookie.path, cookie.name)
        if len(jar) > _MOST_COOKIES:
            jar.clear()

    def _proxy(self, url: httpx2.URL) -> str | None:
        port = url.port or (443 if url.scheme == "https" else 80)
        return proxy_for(url.scheme, url.host, port, self._environ)

    async def _transport(self, url: httpx2.URL) -> httpx2.AsyncHTTPTransport:
        import httpx2

        proxy_url = self._proxy(url)
        key = (url.scheme, proxy_url)
        found = self._inner.get(key)
        if found is not None:
            return found
        try:
            secure = url.scheme == "https" or (proxy_url or "").startswith("https:")
            context = await shared_context(self._environ) if secure else plain_context()
        except OSError:
            raise self._failed(
                Fault("tls", executed="no", detail="SSL_CERT_FILE or SSL_CERT_DIR holds no usable certificates")
            ) from None
        try:
            # httpx2 takes a proxy's login out of its URL.
            proxy = (
                httpx2.Proxy(proxy_url, ssl_context=context if proxy_url.startswith("https:") else None)
                if proxy_url
                else None
            )
            transport = httpx2.AsyncHTTPTransport(
                verify=context,
                trust_env=False,
                proxy=proxy,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE),
            )
        except (ValueError, ImportError, httpx2.InvalidURL):
            raise self._failed(
                Fault("proxy", executed="no", detail="the proxy's address or kind is not supported")
            ) from None
        return self._inner.setdefault(key, join_writes(transport, plain=url.scheme == "http" and proxy is None))

    def _failed(self, fault: Fault) -> RequestFailed:
        return RequestFailed(replace(fault, detail=self._redactor(fault.detail)))

    async def aclose(self) -> None:
        for transport in self._inner.values():
            with contextlib.suppress(Exception):
                await transport.aclose()
        self._inner.clear()


def _not_logged_in(error: PiMcpError) -> RequestFailed:
    return RequestFailed(Fault("status", 401, executed="no", diagnostic=error.diagnostic))


def pieces(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The decoded body as it comes. Raises what the network raises; whoever reads a part of it only, closes it.

    What is not packed is read past the library's unpacking, counting and cutting, which took a twentieth of a call's
    processor time.
    """
    if response.headers.get("content-encoding"):
        return response.aiter_bytes()
    return cast("AsyncGenerator[bytes]", aiter(cast("AsyncIterable[bytes]", response.stream)))


async def read_body(response: httpx2.Response, limit: int) -> bytes:
    """The decoded body; raises `TooLarge` beyond `limit` bytes, and what the network raises for a short one."""
    size = 0
    parts: list[bytes] = []
    async with contextlib.aclosing(pieces(response)) as body:
        async for part in body:
            size += len(part)
            if size > limit:
                raise TooLarge
            parts.append(part)
    return b"".join(parts)


def media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()
