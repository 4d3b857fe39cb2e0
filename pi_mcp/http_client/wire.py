"""Sockets for `http.client`: opened within a deadline, through the environment's proxy, and read within it.

Comes in: an `Address` and a `Deadline`. Goes out: something that `http.client` takes for a socket. A socket's own time
limit begins anew with every read, so that a server that drips bytes is never late; here what is left is counted before
each read. It never turns certificate checks off.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.http_client.address import Address, parse
from pi_mcp.http_client.fault import MCPClientError
from pi_mcp.network import certificate_fault, proxy_for

if TYPE_CHECKING:
    import ssl

_CHUNK = 256 * 1024
_contexts: dict[tuple[str, str], ssl.SSLContext] = {}


class Deadline:
    """The moment at which waiting for one request ends; a sign of life moves it, up to a cap."""

    def __init__(self, seconds: float, cap: float | None = None) -> None:
        now = time.monotonic()
        self._seconds = seconds
        self._has_cap = cap is not None
        self._cap = now + (seconds if cap is None else max(seconds, cap))
        self._at = min(now + seconds, self._cap)

    def left(self) -> float:
        """Seconds that are left; raises TimeoutError when none are."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def heard(self) -> None:
        self._at = min(time.monotonic() + self._seconds, self._cap)

    @property
    def capped(self) -> bool:
        """It was the cap that passed, not the silence."""
        return self._has_cap and time.monotonic() >= self._cap


class Wire:
    """What `http.client` uses of a socket. One per connection; `deadline` is that of the request under way."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.sock = sock
        self.deadline = deadline

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK):
            self.sock.settimeout(self.deadline.left())
            self.sock.sendall(view[start : start + _CHUNK])

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        del mode
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self.sock.close()

    def interrupt(self) -> None:
        """From another thread: end whatever waits on it."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def is_fresh(self) -> bool:
        """Nothing came since the last answer: neither its end nor something that nobody asked for."""
        try:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False


class _Reader(io.RawIOBase):
    """The reading side, as `http.client` holds it longer than the socket itself."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # Counts as a user of the socket, which is really closed when the last one is.
        self._raw = wire.sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._wire.sock.settimeout(self._wire.deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """Reads over interim answers (103 Early Hints …), as RFC 9110 §15.2 wants; `http.client` knows 100 alone."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if not 100 < status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


class Connection(http.client.HTTPConnection):
    """A connection to one origin, perhaps through a proxy."""

    response_class = _Response

    def __init__(self, address: Address, environ: Mapping[str, str], connect_timeout: float) -> None:
        super().__init__(address.host, address.port)
        self._address = address
        self._environ = environ
        self._connect_timeout = connect_timeout
        self.wire: Wire | None = None
        self.used = 0.0
        self.absolute = False
        """The request line names the whole address: an HTTP proxy is asked."""
        self.proxy_login: str | None = None

    def open(self, deadline: Deadline) -> None:
        """Connect. Raises MCPClientError `refused`, `dns`, `tls` …: nothing was sent."""
        self._opening = Deadline(min(self._connect_timeout, deadline.left()))
        try:
            self.connect()
        except MCPClientError:
            raise
        except socket.gaierror:
            raise MCPClientError("dns", executed="no", detail=self._address.host) from None
        except ConnectionRefusedError:
            raise self._failed("refused") from None
        except TimeoutError:
            raise self._failed("connect_timeout") from None
        except OSError as error:
            words = _tls_fault(error)
            raise self._failed("tls" if words else "unreachable", words) from None

    def _failed(self, kind: str, words: str = "") -> MCPClientError:
        place = self._address.place
        return MCPClientError(kind, executed="no", detail=f"{place}: {words}" if words else place)

    def connect(self) -> None:
        deadline, address = self._opening, self._address
        proxy = proxy_for(address.scheme, address.host, address.port, self._environ)
        if address.scheme == "https":
            _context(self._environ)  # nobody is disturbed where there are no certificates to judge by
        sock = _connected(address.host, address.port, deadline) if proxy is None else self._through(proxy, deadline)
        if address.scheme == "https":
            sock = _secured(sock, address.host, self._environ, deadline)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire = Wire(sock, deadline)
        self.sock = self.wire

    def _through(self, proxy: str, deadline: Deadline) -> socket.socket:
        """A socket by way of a proxy: a tunnel for https, the proxy itself for http."""
        unusable = "the proxy's address or kind is not supported"
        try:
            via = parse(proxy)
        except ValueError:
            raise MCPClientError("proxy", executed="no", detail=unusable) from None
        tunnel = self._address.scheme == "https"
        if via.scheme == "https" and tunnel:
            raise MCPClientError("proxy", executed="no", detail=unusable)  # TLS within TLS
        try:
            sock = _connected(via.host, via.port, deadline)
        except OSError:
            raise MCPClientError("proxy", executed="no", detail=via.place) from None
        if via.scheme == "https":
            sock = _secured(sock, via.host, self._environ, deadline)
        self.absolute, self.proxy_login = not tunnel, via.login
        if not tunnel:
            return sock
        target = self._address.place
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        lines += [f"Proxy-Authorization: {via.login}"] if via.login else []
        wire = Wire(sock, deadline)
        answer = http.client.HTTPResponse(wire, method="CONNECT")  # type: ignore[arg-type]
        try:
            wire.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
            answer.begin()
            if answer.status // 100 == 2:
                return sock
        except TimeoutError:
            sock.close()
            raise
        except (http.client.HTTPException, OSError):
            pass
        finally:
            answer.close()
        sock.close()
        raise self._failed("proxy")


def _connected(host: str, port: int, deadline: Deadline) -> socket.socket:
    """The first of the host's addresses that answers, each given its share of what is left."""
    found = _looked_up(host, port, deadline)
    problems: list[OSError] = []
    for number, (family, kind, protocol, _, place) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left() / (len(found) - number))
            sock.connect(place)
        except OSError as error:
            sock.close()
            problems.append(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    refused = [problem for problem in problems if isinstance(problem, ConnectionRefusedError)]
    late = [problem for problem in problems if isinstance(problem, TimeoutError)]
    raise [*refused, *late, *problems, OSError("no address")][0]


def _looked_up(host: str, port: int, deadline: Deadline) -> list[Any]:
    """`getaddrinfo`, which has no time limit of its own, on a thread that nobody has to wait for."""
    name = host.encode("ascii")  # as text it would go through the IDNA codec, whose tables are a third of a megabyte
    try:
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error if isinstance(error, OSError) else socket.gaierror())

    import threading

    thread = threading.Thread(target=work, name="pi-mcp name look-up", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not found:
        raise TimeoutError
    if isinstance(found[0], OSError):
        raise found[0]
    return list(found[0])


def _secured(sock: socket.socket, host: str, environ: Mapping[str, str], deadline: Deadline) -> socket.socket:
    """TLS over `sock`, with the certificates that the environment names (SSL_CERT_FILE, SSL_CERT_DIR)."""
    try:
        sock.settimeout(deadline.left())
        return _context(environ).wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _tls_fault(error: OSError) -> str:
    """What a failed handshake means; empty for what is none. Only who speaks TLS has loaded `ssl`."""
    module = sys.modules.get("ssl")
    if module is None or not isinstance(error, module.SSLError):
        return ""
    if isinstance(error, module.SSLCertVerificationError):
        return certificate_fault(error.verify_code)
    plain = error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
    return "the port does not speak TLS" if plain else "the handshake failed"


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """One for all connections with the same certificates: building it reads a few hundred of them.

    Raises MCPClientError where the variables name nothing usable.
    """
    import ssl

    key = (environ.get("SSL_CERT_FILE", ""), environ.get("SSL_CERT_DIR", ""))
    if key not in _contexts:
        try:
            _contexts[key] = ssl.create_default_context(cafile=key[0] or None, capath=key[1] or None)
        except OSError:
            detail = "SSL_CERT_FILE or SSL_CERT_DIR holds no usable certificates"
            raise MCPClientError("tls", executed="no", detail=detail) from None
    return _contexts[key]
