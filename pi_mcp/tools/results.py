"""A tool's result within the limits that a conversation can bear.

Comes in: the result as the server sent it, any JSON. Goes out: text and image blocks for the model, the same as
text for the terminal, and private files with what did not fit. It never fetches a link, takes no file name from
a server, and does not judge whether the call succeeded: `isError` is its caller's matter.
"""

from __future__ import annotations

import base64
import binascii
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.errors import PiMcpError
from pi_mcp.text import clean, clean_line

KEEP_SECONDS = 7 * 86400.0
"""How long a saved result stays (DESIGN §7)."""

SMALL = 16_384
"""Characters, with one more for each value, of a result that is presented faster than a thread takes it over."""

MAX_IMAGES = 20
"""Images per result; providers refuse requests with many more."""

MAX_SAVED = 20
"""Binary parts saved one by one per result; the whole result holds the others."""

_IMAGES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
SUFFIXES = {
    **_IMAGES,
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "image/svg+xml": ".svg",
    "text/csv": ".csv",
    "text/plain": ".txt",
}
_UNKNOWN_EXCERPT = 500
"""Characters shown of a block whose type is unknown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one result may put into a conversation, over all of its blocks."""

    lines: int = 2000
    text_bytes: int = 50 * 1024
    """UTF-8 bytes of text, the note about the cut included."""
    image_bytes: int = 8 * 1024 * 1024
    """Characters of base64."""


DEFAULT = Limits()
WHOLE = Limits(lines=1 << 40, text_bytes=1 << 40)
"""For a file or a pipe: no text is cut."""


@dataclass(frozen=True, slots=True)
class Presented:
    """A result for a conversation. Nothing in it duplicates what was cut (report B097)."""

    content: list[dict[str, Any]]
    """`text` and `image` blocks in wire spelling; never empty."""
    text: str
    """The same for a terminal, images named."""
    files: tuple[Path, ...] = ()
    """Private files: binary parts, and the whole result where it was cut."""
    images: int = 0
    """How many images are in `content`."""


def present(result: Any, *, server: str, directory: Path, limits: Limits = DEFAULT) -> Presented:
    """Bring `result` within `limits`; what does not fit goes into private files in `directory`.

    Any JSON is taken: missing content, unknown blocks and wrong types are shown, never an exception
    (reports B091, B097, B098, B113, B182, B190).
    """
    work = _Work(result, clean_line(server, 80), directory, limits)
    if isinstance(result, Mapping):
        for block in _blocks(result.get("content")):
            work.block(block)
        structured = result.get("structuredContent")
        if structured is not None and not _told(structured, work.texts):
            work.add_text(_json(structured))
    else:
        work.add_text(_json(result))
    return work.finish()


def is_small(result: Any) -> bool:
    """True for a few texts and values: presenting them takes less than a millisecond and writes no file.

    The walk itself is bounded by `SMALL` values; binary parts, resources and unknown blocks are never small.
    """
    if not isinstance(result, Mapping) or not isinstance(result.get("content", []), list):
        return False
    for block in result.get("content", []):
        if not isinstance(block, Mapping) or block.get("type") not in ("text", "resource_link"):
            return False
    size = 0
    left: list[Any] = [result]
    while left:
        value = left.pop()
        size += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            size += len(value) + sum(map(len, value))
            left.extend(value.values())
        elif isinstance(value, list):
            size += len(value)
            left.extend(value)
        if size > SMALL:
            return False
    return True


def sweep(directory: Path, *, now: float | None = None) -> int:
    """Remove saved results older than 7 days; how many files went. `now` is Unix time in seconds."""
    return files.remove_older(directory, KEEP_SECONDS, now=now)


@dataclass
class _Work:
    """One result on its way: pieces in order, where a piece is text or an image block."""

    result: Any
    server: str
    directory: Path
    limits: Limits
    pieces: list[str | dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The text blocks as sent, to be compared with the structured content."""
    saved: list[Path] = field(default_factory=list)
    image_bytes: int = 0
    images: int = 0
    incomplete: bool = False
    """Something is in the result only: keep it whole."""

    def block(self, block: Any) -> None:
        if not isinstance(block, Mapping):
            self.add_text(block if isinstance(block, str) else _json(block))
            return
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            self.texts.append(block["text"])
            self.add_text(block["text"])
        elif kind == "image":
            self.add_binary("image", block.get("data"), block.get("mimeType"))
        elif kind == "audio":
            self.add_binary("audio", block.get("data"), block.get("mimeType"))
        elif kind == "resource_link":
            self.add_text(_link(block))
        elif kind == "resource" and isinstance(block.get("resource"), Mapping):
            self.resource(block["resource"])
        else:
            self.unknown(kind, block)

    def resource(self, resource: Mapping[str, Any]) -> None:
        uri = _named(resource.get("uri"), 500) or "without uri"
        text = resource.get("text")
        if isinstance(text, str):
            mime = _named(resource.get("mimeType"), 80)
            self.add_text(f"[resource {uri}{f' ({mime})' if mime else ''}]\n{text}")
        elif "blob" in resource:
            self.add_binary(f"resource {uri}", resource.get("blob"), resource.get("mimeType"))
        else:
            self.add_text(f"[resource {uri}, without content]")

    def unknown(self, kind: Any, block: Mapping[str, Any]) -> None:
        name = f'type "{clean_line(kind, 80)}"' if isinstance(kind, str) else "no known type"
        text = _json(block)
        if len(text) > _UNKNOWN_EXCERPT:
            text = f"{text[:_UNKNOWN_EXCERPT]}… ({len(text):,} characters)"
            self.incomplete = True
        self.add_text(f"[content of {name}] {clean_line(text, 2 * _UNKNOWN_EXCERPT)}")

    def add_text(self, text: str) -> None:
        self.pieces.append(text)

    def add_binary(self, label: str, data: Any, mime: Any) -> None:
        """Pass an image through, or save the bytes and name them."""
        declared = _named(mime, 80).partition(";")[0].strip().lower()
        name = declared or "of unknown type"
        encoded = "".join(data.split()) if isinstance(data, str) else ""
        raw = decoded_base64(encoded)
        if raw is None:
            self.incomplete = True
            size = f"{len(data):,} characters" if isinstance(data, str) else "no data"
            self.add_text(f"[{label} {name}: not valid base64, {size}]")
            return
        seen = image_type(raw, declared)
        if seen is not None and self.images < MAX_IMAGES and self.image_bytes + len(encoded) <= self.limits.image_bytes:
            if label.startswith("resource"):
                self.add_text(f"[{label}: {seen}, {size_of(len(raw))}, shown as an image]")
            self.images += 1
            self.image_bytes += len(encoded)
            self.pieces.append({"type": "image", "data": encoded, "mimeType": seen})
            return
        path = self.save(raw, SUFFIXES.get(seen or declared, ".bin"))
        where = f"saved as {path}" if path else "not saved by itself"
        if path is None:
            self.incomplete = True
        reason = ""
        if seen is not None:
            reason = ", beyond the budget for images"
        elif declared in _IMAGES:
            reason = ", no image of that type"
        self.add_text(f"[{label} {name}, {size_of(len(raw))}{reason}; {where}]")

    def save(self, raw: bytes, suffix: str) -> Path | None:
        """A private file with a generated name; None where too many are saved already or saving failed."""
        if len(self.saved) >= MAX_SAVED:
            return None
        return self._create("part-", suffix, raw)

    def _create(self, prefix: str, suffix: str, data: bytes) -> Path | None:
        try:
            path = files.create_private(self.directory, prefix, suffix, data)
        except (OSError, PiMcpError):  # a full disk must not lose the result that is at hand
            return None
        self.saved.append(path)
        return path

    def finish(self) -> Presented:
        pieces, cut = self._cleaned()
        if cut or self.incomplete:
            pieces = self._cut(pieces, cut)
        if not pieces:
            pieces = ["(The tool returned no content.)"]
        content: list[dict[str, Any]] = []
        shown: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                content.append({"type": "text", "text": piece})
                shown.append(piece)
            else:
                content.append(piece)
                shown.append(f"[image {piece['mimeType']}, {size_of(len(piece['data']) * 3 // 4)}]")
        return Presented(content, "\n".join(shown), tuple(self.saved), self.images)

    def _cleaned(self) -> tuple[list[str | dict[str, Any]], bool]:
        """The pieces without control bytes, and whether they go beyond the limits."""
        pieces: list[str | dict[str, Any]] = []
        total_lines = total_bytes = 0
        cut = False
        most = 8 * self.limits.text_bytes
        for piece in self.pieces:
            if not isinstance(piece, str):
                pieces.append(piece)
                continue
            # Beyond the limit only the head is cleaned: the rest is not shown.
            text = clean(piece[:most])
            cut = cut or len(piece) > most
            if not text.strip():
                continue
            if cut and total_bytes > self.limits.text_bytes:
                continue
            pieces.append(text)
            total_lines += _lines(text)
            total_bytes += len(text.encode())
        cut = cut or total_lines > self.limits.lines or total_bytes > self.limits.text_bytes
        return pieces, cut

    def _cut(self, pieces: list[str | dict[str, Any]], cut: bool) -> list[str | dict[str, Any]]:
        """The head of the text within the limits, and a note with the path of the whole result."""
        whole = self._create("result-", ".json", _file_json(self.result))
        all_text = [piece for piece in self.pieces if isinstance(piece, str)]
        lines = sum(map(_lines, all_text))
        size = sum(len(text.encode("utf-8", "replace")) for text in all_text)
        head, kept_lines, kept_bytes = pieces, 0, 0
        if cut or self._over(pieces, 4, 1200):
            cut = True
            head, kept_lines, kept_bytes = _head(
                pieces, max(1, self.limits.lines - 4), max(0, self.limits.text_bytes - 1200)
            )
        note = []
        if cut:
            note.append(f"Cut: {kept_lines:,} of {lines:,} lines ({size_of(kept_bytes)} of {size_of(size)}) are shown.")
        if whole is None:
            note.append("The whole result could not be saved.")
        else:
            note.append(f"The whole result is in {whole} (JSON, kept for 7 days).")
            if cut:
                note.append(f"Read a part of its text with: {_reader(whole, self.result, kept_bytes)}")
        return [*head, f"[{' '.join(note)}]"]

    def _over(self, pieces: list[str | dict[str, Any]], lines: int, size: int) -> bool:
        """True where a note of that many lines and bytes would not fit behind the text."""
        texts = [piece for piece in pieces if isinstance(piece, str)]
        return (
            sum(map(_lines, texts)) + lines > self.limits.lines
            or sum(len(text.encode()) for text in texts) + size > self.limits.text_bytes
        )


def _blocks(content: Any) -> list[Any]:
    if content is None:
        return []
    return content if isinstance(content, list) else [content]


def _head(pieces: list[str | dict[str, Any]], lines: int, size: int) -> tuple[list[str | dict[str, Any]], int, int]:
    """Pieces up to `lines` lines and `size` bytes of text; images stay wherever they stand."""
    head: list[str | dict[str, Any]] = []
    kept_lines = kept_bytes = 0
    full = False
    for piece in pieces:
        if not isinstance(piece, str):
            head.append(piece)
            continue
        if full:
            continue
        rows = piece.split("\n", lines - kept_lines)
        text = piece if len(rows) <= lines - kept_lines else "\n".join(rows[:-1])
        raw = text.encode()
        if len(raw) > size - kept_bytes:
            text = raw[: size - kept_bytes].decode("utf-8", "ignore")
            # A whole last line where that costs little.
            end = text.rfind("\n")
            if end > 0 and len(text) - end < 1024:
                text = text[:end]
        full = text != piece
        if text:
            head.append(text)
            kept_lines += _lines(text)
            kept_bytes += len(text.encode())
        full = full or kept_lines >= lines or kept_bytes >= size
    return head, kept_lines, kept_bytes


def _reader(path: Path, result: Any, shown: int) -> str:
    """A command line that prints the next part of the text out of the JSON file."""
    texts = ".content[]?.text? // empty"
    if isinstance(result, Mapping):
        blocks = _blocks(result.get("content"))
        if not any(isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in blocks):
            texts = ".structuredContent" if result.get("structuredContent") is not None else "."
    else:
        texts = "."
    return f"jq -r {shlex.quote(texts)} {shlex.quote(str(path))} | tail -c +{shown + 1} | head -c 40000"


def _file_json(result: Any) -> bytes:
    """Raw data, JSON-escaped to ASCII: nothing in the file steers a terminal (report B182)."""
    try:
        return json.dumps(result, indent=1).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_fallback(result)).encode()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return _fallback(value)


def _fallback(value: Any) -> str:
    return f"(a {type(value).__name__} that cannot be written as JSON)"


def _told(structured: Any, texts: list[str]) -> bool:
    """True where the text blocks say the same as the structured content: equal by value as JSON.

    A schema wants an object, so servers wrap a plain value as the only member of one, under a name of their
    choice, and put the value, or each item of a list, into text blocks of its own.
    """
    values = [structured]
    if isinstance(structured, Mapping) and len(structured) == 1:
        values.extend(structured.values())
    wanted = [_canonical(value) for value in values]
    if not texts:
        return False
    if any(isinstance(value, str) and value in texts for value in values):
        return True
    parsed = [_parsed(text) for text in texts]
    if any(one is not None and one in wanted for one in [*parsed, _parsed("".join(texts))]):
        return True
    return any(
        isinstance(value, list)
        and len(value) == len(texts)
        and all(
            item == text or (one is not None and _canonical(item) == one)
            for item, text, one in zip(value, texts, parsed, strict=True)
        )
        for value in values
    )


def _parsed(text: str) -> str | None:
    try:
        return _canonical(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _canonical(value: Any) -> str | None:
    """JSON with sorted keys: `1` and `true` differ, `1` and `1.0` do not."""
    try:
        return json.dumps(_plain_numbers(value), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain_numbers(one) for key, one in value.items()}
    return value


def _link(block: Mapping[str, Any]) -> str:
    """One line for a resource link; it is never followed."""
    uri = _named(block.get("uri"), 500) or "without uri"
    title = _named(block.get("title"), 200) or _named(block.get("name"), 200)
    size = block.get("size")
    facts = [_named(block.get("mimeType"), 80)]
    if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**60:
        facts.append(size_of(size))
    told = ", ".join(fact for fact in facts if fact)
    line = f"[resource link {uri}{f' ({told})' if told else ''}]"
    about = _named(block.get("description"), 300)
    return " ".join(part for part in (line, title, f"— {about}" if about else "") if part)


def _named(value: Any, limit: int) -> str:
    return clean_line(value, limit) if isinstance(value, str) else ""


def decoded_base64(encoded: str) -> bytes | None:
    """The bytes of standard or URL-safe base64; padding may be missing. None for anything else, or nothing."""
    if not encoded:
        return None
    text = encoded.rstrip("=")
    alternative = b"-_" if "-" in text or "_" in text else None
    try:
        return base64.b64decode((text + "=" * (-len(text) % 4)).encode("ascii"), altchars=alternative, validate=True)
    except (binascii.Error, ValueError):
        return None


def image_type(raw: bytes, declared: str) -> str | None:
    """The type that a provider will see in the bytes, None for what is no image that models take.

    Providers refuse a request whose image is not what its type says, and with it every later request of the
    conversation. Bytes that look like none of the four keep their declared type unless they are plain text.
    """
    if declared not in _IMAGES:
        return None
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw.startswith(b"RIFF") and raw[8:12] == b"WEBP":
        return "image/webp"
    try:
        readable = raw[:512].decode("ascii").replace("\n", " ").replace("\r", " ").replace("\t", " ")
    except UnicodeDecodeError:
        return declared
    return None if readable.isprintable() else declared


def _lines(text: str) -> int:
    return text.count("\n") + 1


def size_of(count: int) -> str:
    """Bytes as a person reads them."""
    if count < 1024:
        return f"{count} bytes"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f} KiB"
    return f"{count / (1024 * 1024):.1f} MiB"
