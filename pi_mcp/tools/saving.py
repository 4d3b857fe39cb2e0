"""Images, sound and blobs of a result as files in a folder that a person named.

Comes in: a result as sent, and a folder. Goes out: the same result twice, once with the path at each block that was
saved, once with a line in its place. It takes no file name from a server, writes over nothing, and loses no result
that cannot be saved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.errors import Diagnostic, failure
from pi_mcp.text import clean_line
from pi_mcp.tools.results import SUFFIXES, decoded_base64, image_type, size_of

FILE = "pi-mcp/file"
"""The member of a block's `_meta` that says where its data was saved."""


def usable_directory(named: Path) -> Path:
    """Its absolute path. Raises `usage` where it is plain, before any call, that nothing can be saved there."""
    try:
        directory = named.expanduser().absolute()
        there = next(path for path in (directory, *directory.parents) if path.exists())
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):
        directory, usable = named, False
    if not usable:
        message = f"--save names a folder that cannot be written ({clean_line(str(directory), 300)})"
        raise failure("usage", "call", None, f"{message}; nothing was sent.", "Name a folder of yours.")
    return directory


def save_binaries(
    result: Mapping[str, Any], directory: Path
) -> tuple[dict[str, Any], dict[str, Any], Diagnostic | None]:
    """(the result with paths, the result with lines for the saved blocks, why a block was not saved).

    What is not valid base64, or cannot be saved, stays as it is.
    """
    problem = None
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    with_paths: list[Any] = []
    with_lines: list[Any] = []
    for block in blocks:
        found = _binary(block)
        try:
            path = files.create_numbered(directory, found[0], found[3], found[2]) if found else None
        except OSError:
            problem = _unsaved(directory)
            path = None
        if found is None or path is None:
            with_paths.append(block)
            with_lines.append(block)
            continue
        stem, mime, raw, _ = found
        meta = block.get("_meta")
        with_paths.append({**block, "_meta": {**(meta if isinstance(meta, dict) else {}), FILE: str(path)}})
        line = f"[{stem} {mime or 'of unknown type'}, {size_of(len(raw))}; saved as {path}]"
        with_lines.append({"type": "text", "text": line})
    if not isinstance(content, list):
        return dict(result), dict(result), None
    return {**result, "content": with_paths}, {**result, "content": with_lines}, problem


def _binary(block: Any) -> tuple[str, str, bytes, str] | None:
    """(kind, mime type, bytes, suffix) of a block with binary data."""
    if not isinstance(block, Mapping):
        return None
    kind, source, data = block.get("type"), block, block.get("data")
    if kind == "resource" and isinstance(block.get("resource"), Mapping):
        source = block["resource"]
        data = source.get("blob")
    elif kind not in ("image", "audio"):
        return None
    raw = decoded_base64("".join(data.split())) if isinstance(data, str) else None
    if raw is None:
        return None
    mime = source.get("mimeType")
    declared = clean_line(mime, 80).partition(";")[0].strip().lower() if isinstance(mime, str) else ""
    return str(kind), declared, raw, SUFFIXES.get(image_type(raw, declared) or declared, ".bin")


def _unsaved(directory: Path) -> Diagnostic:
    return Diagnostic(
        "operation_failed",
        "call",
        None,
        f"A part of the result cannot be saved in {clean_line(str(directory), 300)}. The tool was called.",
        "See that --save names a folder of yours, and that the disk has room.",
    )
