"""Logins without a person: credentials as a login leaves them, keyrings that fail, and an authority for HttpServer.

Comes in: names and addresses. Goes out: values and doubles. The authority is a token endpoint with rotating, single-use
refresh tokens whose second use ends the whole login, as the strict services have it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from pi_mcp.auth.records import Client, Credential, Tokens
from pi_mcp.auth.store import CredentialStore
from pi_mcp.config import ResolvedServer, configuration_of, resolve
from tests.hostile.http_server import HttpServer, Request

KEY = {"PI_MCP_CREDENTIAL_KEY": "0123456789abcdef" * 4}
"""Selects the encrypted file."""
PLANTED = "pl4nted-secret"
"""Part of every secret value that these helpers make."""
URL = "https://mcp.example/mcp"


def tokens(number: int = 1, *, lifetime: float | None = 3600.0, size: int = 0, refresh: bool = True) -> Tokens:
    """The tokens of the `number`-th reply; `lifetime` in seconds from now, negative for one that is over."""
    now = time.time()
    return Tokens(
        access_token=f"at{number}-{PLANTED}-" + "x" * size,
        refresh_token=f"rt{number}-{PLANTED}" if refresh else None,
        scopes=("read", "write"),
        obtained_at=min(now, now + (lifetime or 0.0)) - 60.0,
        expires_at=None if lifetime is None else now + lifetime,
    )


def credential(
    server: str = "s",
    url: str = URL,
    *,
    issuer: str = "https://login.example",
    token_url: str | None = None,
    **more: Any,
) -> Credential:
    """A login as it is stored; `more` goes to `tokens`."""
    return Credential(
        server=server,
        url=url,
        issuer=issuer,
        resource=url,
        client=Client(f"client-{server}", "registered", "http://127.0.0.1:19847/callback", secret=f"cs-{PLANTED}"),
        tokens=tokens(**more),
        token_endpoint=token_url or f"{issuer}/token",
    )


def store_of(
    folder: Path, keyring: Any = None, *, environ: Mapping[str, str] | None = None, **more: Any
) -> CredentialStore:
    """A store below `folder`: over `keyring`, or over encrypted files."""
    if environ is None:
        environ = {} if keyring is not None else KEY
    return CredentialStore(state_dir=folder, environ=environ, keyring=keyring, **more)


def resolved_of(server: str, url: str, **entry: Any) -> ResolvedServer:
    configuration = configuration_of({server: {"url": url, **entry}}, environ=dict(os.environ))
    return resolve(configuration.servers[server], configuration)


class MemoryKeyring:
    """A backend in memory. `limit` counts UTF-16 code units, as Windows does, with Windows' own obscure error."""

    def __init__(self, limit: int | None = 1280) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.limit = limit
        self.calls: list[str] = []
        self.threads: set[str] = set()

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.threads.add(threading.current_thread().name)

    def get_password(self, service: str, username: str) -> str | None:
        self._called("get")
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._called("set")
        if self.limit is not None and len(password.encode("utf-16-le")) // 2 > self.limit:
            raise OSError(1783, "The stub received bad data")
        self.entries[(service, username)] = password

    def delete_password(self, service: str, username: str) -> None:
        self._called("delete")
        if (service, username) not in self.entries:
            from keyring.errors import PasswordDeleteError

            raise PasswordDeleteError("not found")
        del self.entries[(service, username)]


class Crash(BaseException):
    """The process died here."""


class CrashingKeyring(MemoryKeyring):
    """Dies before its `after`-th change."""

    def __init__(self, after: int, entries: Mapping[tuple[str, str], str]) -> None:
        super().__init__()
        self.entries = dict(entries)
        self.after = after

    def _change(self) -> None:
        if self.after == 0:
            raise Crash
        self.after -= 1

    def set_password(self, service: str, username: str, password: str) -> None:
        self._change()
        super().set_password(service, username, password)

    def delete_password(self, service: str, username: str) -> None:
        self._change()
        super().delete_password(service, username)


class FailingKeyring(MemoryKeyring):
    """Every call raises what `error` makes."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.error = error

    def get_password(self, service: str, username: str) -> str | None:
        raise self.error()

    def set_password(self, service: str, username: str, password: str) -> None:
        raise self.error()


class ForgetfulKeyring(MemoryKeyring):
    """Says that it wrote, and keeps nothing."""

    def set_password(self, service: str, username: str, password: str) -> None:
        return None


class HangingKeyring(MemoryKeyring):
    """Every call waits until `released`: a prompter whose person is away."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def get_password(self, service: str, username: str) -> str | None:
        self.released.wait()
        return super().get_password(service, username)


class Authority:
    """A token endpoint at `/token` of an HttpServer, and the guard before its MCP endpoint."""

    def __init__(self, *, rotates: bool = True, delay: float = 0.0, lifetime: float | None = 3600.0) -> None:
        self.rotates, self.delay, self.lifetime = rotates, delay, lifetime
        self.number = 1
        self.alive = True
        self.accepts: set[str] = set()
        """Access tokens that the MCP endpoint takes."""
        self.refresh_token = f"rt1-{PLANTED}"
        self.requests: list[dict[str, str]] = []
        self.failing: Mapping[str, Any] | None = None
        """A reaction in place of an answer."""
        self.call_delay = 0.0

    def script(self) -> dict[str, Any]:
        return {"/token": self.token, "*": self.guard}

    def token(self, request: Request, server: HttpServer) -> Mapping[str, Any]:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        self.requests.append(form)
        if self.failing is not None:
            return self.failing
        given = form.get("refresh_token")
        if form.get("grant_type") != "client_credentials" and (given != self.refresh_token or not self.alive):
            self.alive = False  # the second use of a refresh token ends the whole login (RFC 9700 §4.14)
            self.accepts.clear()
            body = {"error": "invalid_grant", "error_description": f"token {given} was used"}
            return {"status": 400, "type": "application/json", "body": body, "sleep": self.delay}
        self.number += 1
        fresh = tokens(self.number)
        self.accepts = {fresh.access_token}
        answer: dict[str, Any] = {"access_token": fresh.access_token, "token_type": "Bearer"}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if self.rotates:
            self.refresh_token = fresh.refresh_token or ""
            answer["refresh_token"] = self.refresh_token
        return {"status": 200, "type": "application/json", "body": answer, "sleep": self.delay}

    def guard(self, request: Request, server: HttpServer) -> Mapping[str, Any]:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme == "Bearer" and token in self.accepts:
            return {"sleep": self.call_delay} if request.method == "tools/call" else {}
        return {"status": 401, "headers": {"WWW-Authenticate": "Bearer"}, "body": f"unauthorized {token}"}

    def login(self, server: str, http: HttpServer, **more: Any) -> Credential:
        """What a login left behind; the MCP endpoint takes its token unless it is over."""
        found = credential(server, http.url, issuer=http.origin, token_url=f"{http.origin}/token", **more)
        if found.tokens.expires_at is None or found.tokens.expires_at > time.time():
            self.accepts.add(found.tokens.access_token)
        return found


def newer(old: Credential, number: int) -> Credential:
    return replace(old, tokens=tokens(number))


def files_below(folder: Path) -> str:
    """Everything that was written below a folder, as text."""
    return "\n".join(
        path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file()
    ) + json.dumps([str(path) for path in sorted(folder.rglob("*"))])
