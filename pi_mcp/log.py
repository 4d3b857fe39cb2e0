"""The debug log: a redacted file when PI_MCP_LOG asks for one, nothing otherwise, the terminal never.

Comes in: log records of `pi_mcp` and of the libraries under it. Goes out: lines in `state_dir()/logs/debug.log`,
cleaned, without known secrets, and without the text or traceback of any foreign exception. It never raises and
never writes to stdout or stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from pi_mcp import files, text
from pi_mcp.errors import PiMcpError

VARIABLE = "PI_MCP_LOG"
LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FILE_LIMIT = 5 * 1024 * 1024
"""Bytes of the current file; the one before it is kept as `debug.log.1`."""
LINE_LIMIT = 8 * 1024
"""Characters of one record."""
LIBRARIES = ("mcp", "client", "httpx2", "httpcore2", "keyring")
"""Loggers of what we use (`client` is the SDK's too). Without a handler they would print to the terminal; from
warnings upward they go to the same file. Below that they would log whole messages."""


def configure_logging(environ: Mapping[str, str] | None = None) -> Path | None:
    """Set the loggers up as PI_MCP_LOG says, and return the log file's path, None without one.

    May be called any number of times; the last call holds.
    """
    value = (os.environ if environ is None else environ).get(VARIABLE, "").strip().lower()
    level = LEVELS.get(value)
    handler: logging.Handler = logging.NullHandler()
    path = None
    if level is not None:
        path = files.state_dir() / "logs" / "debug.log"
        handler = RedactedFile(path)
    ours = logging.getLogger("pi_mcp")
    _replace_handler(ours, handler)
    ours.setLevel(level if level is not None else logging.WARNING)
    # A host that logs to its terminal would show our lines there.
    ours.propagate = False
    for name in LIBRARIES:
        _replace_handler(logging.getLogger(name), _from_warning(handler))
    return path


class RedactedFile(logging.Handler):
    """Appends each record to `path`, one or several lines, in at most two files of `FILE_LIMIT` bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        # A full disk or a record that cannot be formatted must neither stop the work nor reach the terminal.
        with contextlib.suppress(Exception):
            self._make_room()
            files.append_private(self.path, _line(record).encode())

    def handleError(self, record: logging.LogRecord) -> None:
        del record

    def _make_room(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.lstat().st_size < FILE_LIMIT:
                return
            # Several processes share the file; whoever comes second finds it small again.
            with files.locked(self.path.with_name("lock"), timeout=0.5):
                files.rotate(self.path, FILE_LIMIT)


class _FromWarning(logging.Handler):
    """A library's way to our handler, for warnings and errors only, whatever level its logger has."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(logging.WARNING)
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        self._handler.handle(record)


def _from_warning(handler: logging.Handler) -> logging.Handler:
    return handler if isinstance(handler, logging.NullHandler) else _FromWarning(handler)


def _replace_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    for old in list(logger.handlers):
        if getattr(old, "_pi_mcp", False):
            logger.removeHandler(old)
    handler._pi_mcp = True  # type: ignore[attr-defined]
    logger.addHandler(handler)


def _line(record: logging.LogRecord) -> str:
    # Twice: cleaning can join a secret that an escape sequence had split.
    message = text.redact(text.clean(text.redact(_message(record))))
    if len(message) > LINE_LIMIT:
        message = message[:LINE_LIMIT] + "…"
    message = message.replace("\n", "\n    ")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{stamp}.{int(record.msecs):03d}Z {record.process} {record.levelname} {record.name}: {message}\n"


def _message(record: logging.LogRecord) -> str:
    args = record.args
    if isinstance(args, Mapping):
        shown: object = {key: _argument(value) for key, value in args.items()}
    else:
        shown = tuple(_argument(value) for value in args or ())
    if isinstance(record.msg, BaseException):
        message = _kinds(record.msg)
    else:
        template = str(record.msg)
        message = template % shown if args else template
    error = record.exc_info[1] if record.exc_info else None
    return f"{message} [{_kinds(error)}]" if error is not None else message


def _argument(value: object) -> object:
    return _kinds(value) if isinstance(value, BaseException) else value


def _kinds(error: BaseException) -> str:
    """What may be said of an exception: our own diagnostic, else its type, and the types within a group."""
    if isinstance(error, PiMcpError):
        return error.diagnostic.line()
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__}({', '.join(_kinds(part) for part in error.exceptions)})"
    return type(error).__name__
