"""Puts off what the standard library loads and writes beside what a single command needs.

Comes in: names of modules. Goes out: a module in the place of each, which loads the real one at its first use;
dataclasses whose methods are not compiled for each class; and a garbage collector that waits.
`dataclasses` imports `inspect` for classes without a docstring, and `email.utils` `random`, `calendar` and `datetime`
for what no HTTP client asks of it; with all that is behind them that is a tenth of a short command's time and memory.
`importlib.util.LazyLoader` would load each with the second `import` of it, as that looks at `__spec__`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from types import ModuleType
from typing import Any

UNUSED = ("random", "calendar", "datetime", *(["inspect"] if sys.version_info < (3, 12) else []))
"""What a call over HTTP has no use for. From Python 3.12 on `dataclasses` asks `inspect` about every class."""
_put_off: list[bool] = []
"""Collections are."""
_real: list[Any] = []
"""The library's `dataclass`, once another took its place."""


class Later(ModuleType):
    """Stands for a module until something of it is asked for, and hands that on to the real one ever after."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def put_off(*names: str) -> None:
    """Have these modules of the standard library loaded when something of them is first asked for."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = Later(name)


def lighten_dataclasses() -> None:
    """From here to `real_dataclasses`, have this package's dataclasses compare, hash and show themselves by functions
    that they share.

    `dataclass` writes and compiles six methods for a frozen class, of which a command calls the first: for the thirty
    classes behind one call that is a fifth of its time. Nothing but the types keeps such an instance from being
    changed; in every other command it is frozen.
    """
    import dataclasses

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        def made(cls: type) -> type:
            ours = cls.__module__.startswith("pi_mcp.") and options.keys() <= {"frozen", "slots"}
            return _light(cls, **options) if ours else _real[0](cls, **options)

        return made if cls is None else made(cls)

    if not _real:
        _real.append(dataclasses.dataclass)
    dataclasses.dataclass = dataclass


def real_dataclasses() -> None:
    """As usual again, for the classes that come."""
    import dataclasses

    if _real:
        dataclasses.dataclass = _real[0]


def put_off_collections() -> None:
    """Until `collect_again` look for no cycles of objects, and at the end of the process not at all.

    What a short command loads stays to its end, and then goes with the process: looking through it took a tenth of a
    call's time, and more where a server lists a thousand tools.
    """
    gc.disable()
    atexit.register(gc.freeze)
    _put_off.append(True)


def collect_again() -> None:
    """As usual again, for what is made from here on. Without a `put_off_collections` before it does nothing."""
    if _put_off:
        _put_off.clear()
        gc.freeze()
        gc.enable()


def _light(cls: type, *, frozen: bool = False, slots: bool = False) -> type:
    own = {"__eq__", "__hash__", "__repr__"} & vars(cls).keys()
    made: type = _real[0](cls, slots=slots, repr=False, eq=False)
    common = {"__eq__": _equal, "__hash__": _hash if frozen else None, "__repr__": _shown}
    for name, method in common.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name, one in value.__dataclass_fields__.items() if one.compare)


def _equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _shown(self: Any) -> str:
    fields = self.__dataclass_fields__
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, one in fields.items() if one.repr)
    return f"{self.__class__.__qualname__}({shown})"
