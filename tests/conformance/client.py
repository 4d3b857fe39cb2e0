"""The client that the official conformance suite drives: the product as it is, with a person who agrees to everything.

Comes in: a server's URL as the last argument; `MCP_CONFORMANCE_SCENARIO` and `MCP_CONFORMANCE_CONTEXT` in the
environment. Goes out: exit status 0 when the server was listed and its tools called. Configuration, plugin, sessions,
`/mcp auth`, callback listener and the encrypted store are the product's own. Only the browser is not: an address that
it would open is fetched, and where that redirects to is fetched from the listener. Sampling, which the product does
not offer, is declared here, since the suite asks for it.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pi_mcp.config import configuration_of
from pi_mcp.connect.connection import Connection
from pi_mcp.errors import Diagnostic, PiMcpError, error_of
from pi_mcp.host import HeadlessHost, Level
from pi_mcp.plugin import Plugin, Session
from tests.conformance.samples import sample

SERVER = "conformance"
METADATA_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""What the suite expects of a client that has a metadata document. It is never fetched."""
PATIENCE = 8
"""Times that the person signs in before they give up. The product has to give up earlier."""
LIMIT = 25.0
"""Seconds; the suite ends a client after 30."""


class Person(HeadlessHost):
    """Agrees to everything: signs in, confirms calls, leaves forms as they were when they were shown."""

    interactive = True

    def __init__(self) -> None:
        self.logins = 0

    async def notify(self, level: Level, text: str) -> None:
        print(f"{level}: {text.splitlines()[0]}", file=sys.stderr)

    async def confirm(self, question: str, details: str) -> bool:
        return True

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        fields: Mapping[str, Any] = schema.get("properties", {})
        return {name: about["default"] if "default" in about else sample(about) for name, about in fields.items()}

    async def open_url(self, url: str) -> bool:
        self.logins += 1
        return await asyncio.to_thread(visit, url)


def visit(url: str) -> bool:
    """The browser: the page that agrees by itself, then the page that it redirects to."""
    target = get(url)
    return target is not None and (get(target), True)[1]


def get(url: str) -> str | None:
    """Fetch a page on this machine; where it redirects to."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("GET", f"{parts.path or '/'}?{parts.query}")
        answer = connection.getresponse()
        answer.read()
        return answer.headers.get("Location") if 300 <= answer.status < 400 else None
    finally:
        connection.close()


# What a person writes into `oauth`


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def oauth_of(scenario: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """The `oauth` object for a scenario. Secrets of the context come in by variables, as they should."""
    client: dict[str, Any] = {}
    if "client_id" in context:
        client["clientId"] = context["client_id"]
    if "client_secret" in context:
        client["clientSecret"] = "${CLIENT_SECRET}"
    if "private_key_pem" in context:
        client["privateKey"] = "${PRIVATE_KEY_PEM}"
    if "client-credentials" in scenario:
        return {"grant": "client_credentials", **client}
    if "valid_jwt" in context:
        return {"grant": "jwt_bearer", "assertion": "${VALID_JWT}", **client}
    if "idp_id_token" in context:
        return {
            "grant": "id_jag",
            "assertion": "${IDP_ID_TOKEN}",
            "idpIssuer": context["idp_issuer"],
            "idpClientId": context["idp_client_id"],
            **client,
        }
    more = {"dpop": True} if scenario.startswith("auth/dpop") else {}
    return {"clientMetadataUrl": METADATA_DOCUMENT, "callbackPort": free_port(), **client, **more}


def environment(context: Mapping[str, Any]) -> dict[str, str]:
    """The variables that the configuration is read with: the context, and a key for the store of logins."""
    given = {name.upper(): value for name, value in context.items() if isinstance(value, str)}
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    own = {name: value for name, value in os.environ.items() if not name.startswith("PI_MCP_")}
    return {**own, **given, "PI_MCP_CREDENTIAL_KEY": key}


# What is done with the server


class Visit:
    """One conversation: sign in where that is wanted, list, call."""

    def __init__(self, session: Session, person: Person, context: Mapping[str, Any]) -> None:
        self.session = session
        self.person = person
        self.context = context

    async def run(self, scenario: str) -> None:
        await self.listing()
        if scenario == "json-schema-ref-no-deref":
            return  # its server can list and nothing else
        if scenario == "json-schema-2020-12-preservation":
            await self.echo_schema()
        elif "toolCalls" in self.context:
            for call in self.context["toolCalls"]:
                await self.call(call["name"], call["arguments"])
        else:
            for name, schema in self.tools().items():
                await self.call(name, sample({"type": "object", **schema}))

    async def listing(self) -> None:
        """List the tools; sign in as often as the server wants it."""
        while True:
            answer = await self.session.command(f"refresh {SERVER}")
            if answer.diagnostic is None:
                return
            await self.sign_in(answer.diagnostic)

    def tools(self) -> dict[str, Mapping[str, Any]]:
        """The listed tools with their input schemas, as the product knows them."""
        catalog = self.session.plugin.catalogs.known(SERVER)
        return {tool.name: tool.input_schema for tool in catalog.tools} if catalog is not None else {}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> None:
        while True:
            loaded = await self.session.load([f"{SERVER}.{name}"])
            native = next((tool.native for tool in self.session.loaded if tool.tool == name), None)
            if native is None:
                raise RuntimeError(f"{name} was not loaded: {loaded.text}")
            try:
                await self.session.call(native, arguments)
                return
            except PiMcpError as error:
                await self.sign_in(error.diagnostic)

    async def echo_schema(self) -> None:
        """Give a tool's schema back as a model that was given it would."""
        await self.session.load([f"{SERVER}.json_schema_2020_12_tool"])
        tool = next(tool for tool in self.session.loaded if tool.tool == "json_schema_2020_12_tool")
        await self.call("json_schema_echo", {"schema": tool.definition["inputSchema"]})

    async def sign_in(self, problem: Diagnostic) -> None:
        """`/mcp auth`, where that is what the problem calls for; raises where it is not, or fails."""
        if problem.code not in ("authentication_required", "permission_denied") or self.person.logins >= PATIENCE:
            raise error_of(problem)
        answer = await self.session.command(f"auth {SERVER}")
        print(answer.text, file=sys.stderr)
        if answer.diagnostic is not None and not answer.text.startswith("Signed in"):
            raise error_of(answer.diagnostic)


def leaked(folder: Path, context: Mapping[str, Any]) -> list[str]:
    """The names of the context's secrets that stand in a file, where none may."""
    names = ("client_secret", "private_key_pem", "valid_jwt", "idp_id_token")
    written = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    return [name for name in names if name in context and str(context[name]).encode() in written]


def offer_sampling() -> None:
    """Declare sampling to the server, and answer it."""
    capabilities, answer = Connection.capabilities, Connection._answer

    def declared(self: Connection) -> dict[str, Any]:
        return {**capabilities(self), "sampling": {}}

    async def answered(self: Connection, link: Any, call: Any, method: str, params: Any) -> dict[str, Any] | None:
        if method == "sampling/createMessage":
            said = {"type": "text", "text": "Hello."}
            return {"role": "assistant", "content": said, "model": "none", "stopReason": "endTurn"}
        return await answer(self, link, call, method, params)

    Connection.capabilities = declared  # type: ignore[method-assign]
    Connection._answer = answered  # type: ignore[method-assign]


async def main(url: str) -> None:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    entry: dict[str, Any] = {"url": url}
    if scenario.startswith("auth/"):
        entry["oauth"] = oauth_of(scenario, context)
    offer_sampling()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        configuration = configuration_of({SERVER: entry}, cwd=folder, environ=environment(context))
        async with Plugin(configuration, state_dir=folder / "state", cache_dir=folder / "cache") as plugin:
            person = Person()
            async with asyncio.timeout(LIMIT):
                await Visit(plugin.session("visit", person), person, context).run(scenario)
        if names := leaked(folder, context):
            raise RuntimeError(f"written to a file: {', '.join(names)}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[-1]))
    except PiMcpError as problem:
        print(problem.diagnostic.line(), file=sys.stderr)
        sys.exit(1)
