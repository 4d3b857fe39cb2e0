"""Sign-in, consent and status in a real Chromium: cookies on loopback, the keyboard alone, a phone, dark and light."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pi_mcp.server.pages import browser as cookies
from tests.auth_server import free_port
from tests.gateway_oauth_support import TestGateway, gateway, serving
from tests.support import run
from tests.test_gateway_oauth_hostile import asking, client_id
from tests.test_gateway_pages import filled

CHROMIUM = "/usr/bin/chromium"
ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1200, "height": 900}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason="/usr/bin/chromium is not installed"),
]


class Client:
    """An OAuth client's own page, where the browser comes back to."""

    def __init__(self) -> None:
        self.answers: list[dict[str, str]] = []
        self.origin = ""

    async def callback(self, request: Request) -> Response:
        self.answers.append(dict(request.query_params))
        return HTMLResponse("<title>Back</title><h1>Back at the program</h1>")

    async def framing(self, request: Request) -> Response:
        return HTMLResponse(f'<h1>Win a prize</h1><iframe src="{request.query_params["url"]}" title="x"></iframe>')


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        try:
            yield browser
        finally:
            await browser.close()


def with_chromium(work: Callable[[TestGateway, Client, Any], Awaitable[None]], folder: Path) -> None:
    async def whole() -> None:
        client = Client()
        app = Starlette(routes=[Route("/callback", client.callback), Route("/framing", client.framing)])
        async with gateway(folder) as gate, serving(app, free_port()) as client.origin, chromium() as browser:
            await work(gate, client, browser)

    run(whole(), 90.0, tidy=False)


def shots() -> Path | None:
    """Where PI_MCP_TEST_SCREENSHOTS wants pictures of the pages, for people to look at."""
    value = os.environ.get("PI_MCP_TEST_SCREENSHOTS")
    return Path(value) if value else None


async def shot(page: Any, name: str) -> None:
    if (folder := shots()) is not None:
        await page.screenshot(path=str(folder / f"{name}.png"), full_page=True)


async def fits(page: Any) -> bool:
    """Nothing sticks out at the side."""
    found: bool = await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    return found


async def ready(page: Any) -> None:
    """The keyboard is where the page puts it: that may come after `load`."""
    await page.wait_for_selector("input:focus, button:focus")


async def focused(page: Any) -> str:
    found: str = await page.evaluate(
        "(e => e ? [e.tagName, e.name || '', e.value || e.textContent || ''].join(' ').trim() : '')"
        "(document.activeElement)"
    )
    return found


def test_a_person_signs_in_and_agrees_with_the_keyboard_alone(tmp_path: Path) -> None:
    async def work(gate: TestGateway, client: Client, browser: Any) -> None:
        id = await client_id(gate, client_name="A good client", redirect_uris=[f"{client.origin}/callback"])
        key = await gate.key("ann", "tools:read tools:write")
        context = await browser.new_context(viewport=PHONE, color_scheme="dark")
        page = await context.new_page()
        complaints: list[str] = []
        # What the policy forbids is said on the console; that a key was wrong (401) is, too.
        page.on(
            "console", lambda message: complaints.append(message.text) if "policy" in message.text.lower() else None
        )
        url = asking(id, redirect_uri=f"{client.origin}/callback", scope="tools:read tools:write")
        await page.goto(gate.issuer + url)
        assert "A good client" in await page.inner_text("main")
        # The field is where the typing goes, without a click.
        await ready(page)
        await page.keyboard.type("pimcp_wrong")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("[role=alert]")
        assert "not valid" in await page.inner_text("[role=alert]")
        await ready(page)
        await page.keyboard.type(key)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("[name=decision]")
        kept = {cookie["name"]: cookie for cookie in await context.cookies()}
        # Chromium takes a Secure cookie with the prefix from http on this machine.
        assert kept[cookies.SESSION]["secure"]
        assert kept[cookies.SESSION]["httpOnly"]
        assert kept[cookies.SESSION]["sameSite"] == "Lax"
        assert cookies.BEFORE not in kept
        assert await page.get_by_role("heading", level=1).inner_text() == "Allow “A good client”?"
        boxes = page.get_by_role("checkbox")
        assert await boxes.count() == 2
        order = []
        for _ in range(12):
            await page.keyboard.press("Tab")
            order.append(await focused(page))
            if order[-1].startswith("INPUT scope tools:write"):
                await page.keyboard.press("Space")
            if order[-1].startswith("BUTTON decision allow"):
                break
        assert [word.split()[0] for word in order] == ["A", "INPUT", "INPUT", "A", "BUTTON"]
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Back at the program")
        (answer,) = client.answers
        assert (answer["state"], answer["iss"]) == ("st", gate.issuer)
        assert answer["code"]
        (consent,) = await gate.store.consents()
        assert list(consent.scopes) == ["tools:read"]
        assert [text for text in complaints if "policy" in text.lower()] == []

    with_chromium(work, tmp_path)


def test_the_pages_fit_and_can_be_read_on_phone_and_desk_in_light_and_dark(tmp_path: Path) -> None:
    async def work(gate: TestGateway, client: Client, browser: Any) -> None:
        await filled(gate)
        redirect = f"{client.origin}/callback?{'y' * 300}"
        id = await client_id(
            gate, client_name="A client whose name is as long as can be" + "x" * 40, redirect_uris=[redirect]
        )
        for size in (PHONE, DESK):
            for scheme in ("light", "dark"):
                context = await browser.new_context(viewport=size, color_scheme=scheme)
                await look(gate, await context.new_page(), asking(
                    id,
                    redirect_uri=redirect,
                    scope="tools:read tools:write prompts:read server:files%20of%20the%20house:read",
                ), f"{scheme}-{size['width']}")  # fmt: skip
                await context.close()

    with_chromium(work, tmp_path)


async def look(gate: TestGateway, page: Any, consent: str, name: str) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))

    async def right(what: str) -> None:
        await shot(page, f"{what}-{name}")
        assert await fits(page), (what, name)
        assert await contrasts(page) == [], (what, name)

    await page.goto(gate.issuer + "/signin")
    await right("signin")
    await page.goto(gate.issuer + await gate.link("ann", "tools:read tools:write resources:read admin"))
    await right("link")
    await ready(page)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/status")
    await right("status")
    for title in ("Servers", "Keys", "Programs", "Last calls"):
        assert await page.get_by_role("heading", name=title).count() == 1
    # A table stays one for a screen reader where it is laid out as cards.
    assert await page.get_by_role("table").count() == 3
    assert await page.get_by_role("columnheader", name="Outcome").count() == 1
    assert await page.get_by_role("button", name="End the access of Program of bob").count() == 1
    await page.goto(gate.issuer + consent)
    await right("consent")
    await page.goto(gate.issuer + "/oauth/authorize?x=y")
    await right("message")
    assert all(url.startswith(gate.issuer) for url in requests)
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground[4:-1].split(",")) < 384) == name.startswith("dark")


async def contrasts(page: Any) -> list[str]:
    """Texts whose contrast with what is behind them is under 4.5 (WCAG 2.2, 1.4.3)."""
    found: list[str] = await page.evaluate(
        """() => {
          const parts = c => c.match(/[0-9.]+/g).map(Number);
          const light = c => { const [r, g, b] = parts(c).slice(0, 3).map(v => { v /= 255;
            return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
            return .2126 * r + .7152 * g + .0722 * b; };
          const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
            const p = parts(c); if (p.length < 4 || p[3] > 0) return c; } return 'rgb(255,255,255)'; };
          const bad = [];
          for (const e of document.querySelectorAll('body *')) {
            if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
            const a = light(getComputedStyle(e).color), b = light(behind(e));
            const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
            if (ratio < 4.5) bad.push(e.tagName + ' ' + ratio.toFixed(2) + ' ' + e.textContent.trim().slice(0, 40));
          }
          return bad; }"""
    )
    return found


def test_nobody_can_frame_the_consent_page_and_a_refusal_gets_back(tmp_path: Path) -> None:
    async def work(gate: TestGateway, client: Client, browser: Any) -> None:
        from playwright.async_api import TimeoutError as PlaywrightTimeoutError

        id = await client_id(gate, redirect_uris=[f"{client.origin}/callback"])
        context = await browser.new_context(viewport=DESK)
        page = await context.new_page()
        await page.goto(gate.issuer + await gate.link())
        await page.get_by_role("button").click()
        await page.wait_for_url("**/status")
        url = gate.issuer + asking(id, redirect_uri=f"{client.origin}/callback")
        await page.goto(f"{client.origin}/framing?url={url.replace('&', '%26')}")
        await page.wait_for_load_state("networkidle")
        frame = page.frames[-1]
        assert await frame.locator("[name=decision]").count() == 0
        await page.goto(url)
        await page.get_by_role("button", name="Refuse").click()
        await page.wait_for_selector("text=Back at the program")
        assert client.answers[0]["error"] == "access_denied"
        assert await gate.store.consents() == []
        # A program with a scheme of its own, and one at an address that no policy can spell.
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("requestfailed", lambda request: said.append(str(request.failure)))
        for redirect in ("cursor://program/cb", f"http://[::1]:{free_port()}/cb"):
            other = await client_id(gate, redirect_uris=[redirect])
            await page.goto(gate.issuer + asking(other, redirect_uri=redirect))
            # What nothing listens to mostly fails at once, and now and then Chromium does not say so.
            with contextlib.suppress(PlaywrightTimeoutError):
                async with page.expect_event("requestfailed", timeout=5000):
                    await page.get_by_role("button", name="Allow").click()
        assert len(await gate.store.consents()) == 2
        assert [text for text in said if "form-action" in text or "BLOCKED_BY_CSP" in text] == []

    with_chromium(work, tmp_path)


def test_a_grant_is_ended_on_the_status_page(tmp_path: Path) -> None:
    async def work(gate: TestGateway, client: Client, browser: Any) -> None:
        await filled(gate)
        page = await (await browser.new_context(viewport=PHONE)).new_page()
        await page.goto(gate.issuer + await gate.link())
        await ready(page)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/status")
        await page.get_by_role("button", name="End the access").click()
        await page.wait_for_selector("[role=status]")
        assert await page.get_by_role("button", name="End the access").count() == 0
        assert [one.revoked is None for one in await gate.store.consents()] == [False, True]
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_selector("text=signed out")
        await page.goto(gate.issuer + "/status")
        assert page.url.startswith(gate.issuer + "/signin")

    with_chromium(work, tmp_path)
