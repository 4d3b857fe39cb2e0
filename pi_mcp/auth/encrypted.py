"""An encrypted file per login, for machines without a keyring; only where a key was given from outside.

Comes in: a text, and a key that `PI_MCP_CREDENTIAL_KEY` or the file named by `PI_MCP_CREDENTIAL_KEY_FILE` holds.
Goes out: AES-256-GCM in a private file. The key is never written, and without it nothing is stored at all.

32 random bytes (64 hexadecimal digits, or base64) go through HKDF-SHA-256; any other text counts as a passphrase and
goes through scrypt. The file's id is authenticated with its content, so that no file can stand for another.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pi_mcp import files
from pi_mcp.auth.places import Unavailable
from pi_mcp.errors import PiMcpError

KEY, KEY_FILE = "PI_MCP_CREDENTIAL_KEY", "PI_MCP_CREDENTIAL_KEY_FILE"
VERSION = 1
SHORTEST = 12
"""Characters of a passphrase."""
SCRYPT = {"n": 2**15, "r": 8, "p": 1}
"""About 0.1 s and 32 MiB, once per process (RFC 7914)."""
FILE_LIMIT = 1024 * 1024
_KEY_FILE_LIMIT = 4096
_HINT = "Give 32 random bytes, for example `openssl rand -base64 32` (docs/signing-in.md)."


def chosen(environ: Mapping[str, str]) -> bool:
    """Whether the person chose the encrypted file. An empty value is a choice too: it must not mean another place."""
    return KEY in environ or KEY_FILE in environ


class FilePlace:
    """`ID.sealed` in one directory."""

    name = "file"

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ
        self._keys: dict[tuple[str, bytes], bytes] = {}

    def probe(self) -> None:
        self._material()
        try:
            files.private_dir(self._directory)
        except (OSError, PiMcpError):
            raise _unusable() from None

    def read(self, id: str, server: str) -> str | None:
        del server
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            data = files.read_private(self._path(id), FILE_LIMIT)
        except OSError:
            raise _unusable() from None
        if data is None:
            return None
        try:
            document = json.loads(data)
            if document["version"] != VERSION:
                return None
            kdf = str(document["kdf"])
            salt, nonce, sealed = (base64.b64decode(document[name]) for name in ("salt", "nonce", "data"))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        try:
            return AESGCM(self._key(salt, kdf)).decrypt(nonce, sealed, _bound(id)).decode()
        except (InvalidTag, ValueError):
            raise Unavailable("The stored login cannot be decrypted with this key.", f"Check {KEY}.") from None

    def parts(self, text: str) -> int:
        del text
        return 0

    def write(self, id: str, server: str, revision: str, text: str) -> None:
        del revision
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        kdf, _ = self._material()
        # One salt as long as a process knows one: deriving from a passphrase is slow on purpose.
        salt = next((salt for known, salt in self._keys if known == kdf), None) or os.urandom(16)
        nonce = os.urandom(12)
        sealed = AESGCM(self._key(salt, kdf)).encrypt(nonce, text.encode(), _bound(id))
        document = {
            "version": VERSION,
            "kdf": kdf,
            **{
                name: base64.b64encode(value).decode()
                for name, value in (("salt", salt), ("nonce", nonce), ("data", sealed))
            },
        }
        try:
            files.write_private(self._path(id), json.dumps(document).encode())
        except (OSError, PiMcpError):
            raise _unusable() from None
        if self.read(id, server) != text:
            raise Unavailable("The encrypted file did not keep what was written to it.", _HINT)

    def clear(self, id: str, server: str, pieces: Iterable[tuple[str, int]]) -> None:
        del id, server, pieces

    def remove(self, id: str, server: str, pieces: Iterable[tuple[str, int]]) -> None:
        del server, pieces
        try:
            files.remove(self._path(id))
        except OSError:
            raise _unusable() from None

    def _path(self, id: str) -> Path:
        return self._directory / f"{id}.sealed"

    def _key(self, salt: bytes, kdf: str) -> bytes:
        """32 bytes for AES. Raises `Unavailable` where the given key is of another kind than the file's."""
        own, material = self._material()
        if own != kdf:
            raise Unavailable("The stored login cannot be decrypted with this key.", f"Check {KEY}.")
        if (kdf, salt) not in self._keys:
            from cryptography.hazmat.primitives import hashes
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
            from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

            if kdf == "hkdf":
                derived = HKDF(hashes.SHA256(), 32, salt, b"pi-mcp credentials 1").derive(material)
            else:
                derived = Scrypt(salt, 32, **SCRYPT).derive(material)
            self._keys[(kdf, salt)] = derived
        return self._keys[(kdf, salt)]

    def _material(self) -> tuple[str, bytes]:
        """How the key is derived, and from what."""
        if KEY in self._environ and KEY_FILE in self._environ:
            raise Unavailable(f"{KEY} and {KEY_FILE} are both set.", "Keep one of them.")
        name = KEY if KEY in self._environ else KEY_FILE
        text = self._environ.get(name, "").strip()
        if name == KEY_FILE and text:
            path = Path(text).expanduser()
            try:
                with path.open("rb") as file:
                    text = file.read(_KEY_FILE_LIMIT + 1)[:_KEY_FILE_LIMIT].decode().strip() if path.is_file() else ""
            except (OSError, ValueError):
                raise Unavailable(f"The file that {KEY_FILE} names cannot be read.", _HINT) from None
        if not text:
            raise Unavailable(f"{name if name in self._environ else KEY} holds no key.", _HINT)
        raw = _random_bytes(text)
        if raw is not None:
            return "hkdf", raw
        if len(text) < SHORTEST:
            raise Unavailable(f"The key of {name} is shorter than {SHORTEST} characters.", _HINT)
        return "scrypt", text.encode()


def _random_bytes(text: str) -> bytes | None:
    """The 32 bytes that 64 hexadecimal digits or 43 or 44 characters of base64 stand for; None for other text."""
    if re.fullmatch("[0-9A-Fa-f]{64}", text):
        return bytes.fromhex(text)
    if not re.fullmatch("(?:[A-Za-z0-9+/]{43}|[A-Za-z0-9_-]{43})=?", text):
        return None
    try:
        return base64.b64decode(text.rstrip("=").replace("-", "+").replace("_", "/") + "=")
    except binascii.Error:
        return None


def _bound(id: str) -> bytes:
    return f"pi-mcp credential {VERSION} {id}".encode()


def _unusable() -> Unavailable:
    return Unavailable("The folder of the encrypted logins cannot be used.", "Check its owner, mode and free space.")
