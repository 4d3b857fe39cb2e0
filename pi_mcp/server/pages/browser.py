"""Which browser a request comes from: cookies, and the proof that a form was ours.

Comes in: headers and form fields. Goes out: a sign-in or none, cookies to set, yes or no. Secrets are compared in
constant time and kept as digests; a form's proof is an HMAC with the cookie as its key, so that nothing is stored for
it and no other site can make one.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from pi_mcp.access import SignIn, Store
from pi_mcp.access import secrets as minted

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SESSION = "__Host-pi-mcp-session"
"""The cookie of a browser that signed in. `__Host-`: set by this very host over https, for all its paths."""
BEFORE = "__Host-pi-mcp-form"
"""The cookie that ties the sign-in form to its browser before anybody is signed in."""
SESSION_LIFE = 12 * 3600.0
"""Seconds that a browser stays signed in."""
BEFORE_LIFE = 3600.0


async def signed_in(cookie: str, store: Store, now: float) -> SignIn | None:
    """Who is signed in by the session's cookie."""
    found = minted.recognise(cookie, "session")
    sign_in = await store.sign_in(found[0]) if found is not None else None
    if found is None or sign_in is None or not minted.same(sign_in.digest, found[1]) or not sign_in.valid(now):
        return None
    store.used("session", sign_in.id, now)
    return sign_in


def set_cookie(response: Response, name: str, value: str, life: float) -> None:
    # Chromium and Firefox take a Secure cookie from http on this machine, too; no other http is served (places.py).
    response.set_cookie(name, value, max_age=int(life), path="/", secure=True, httponly=True, samesite="lax")


def drop_cookie(response: Response, name: str) -> None:
    response.delete_cookie(name, path="/", secure=True, httponly=True, samesite="lax")


def before_cookie(request: Request) -> tuple[str, bool]:
    """The cookie of the sign-in form, and whether it is new and has to be set."""
    kept = request.cookies.get(BEFORE, "")
    return (kept, False) if minted.recognise(kept, "other") else (minted.mint("other").text, True)


def proof(cookie: str, form: str, *covered: str) -> str:
    """The hidden field of a form: that this browser was shown it, with these values."""
    said = "\0".join((form, *covered)).encode("utf-8", "surrogatepass")
    return hmac.new(cookie.encode("utf-8", "surrogatepass"), said, hashlib.sha256).hexdigest()


def proven(cookie: str, given: str, form: str, *covered: str) -> bool:
    return bool(cookie) and hmac.compare_digest(
        proof(cookie, form, *covered).encode(), given.encode("utf-8", "replace")
    )


def own_form(request: Request, origin: str) -> bool:
    """Did the form come from one of our pages, as far as the browser says? An old one says nothing."""
    said = request.headers.get("origin")
    if said is not None and said != origin:
        return False
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
