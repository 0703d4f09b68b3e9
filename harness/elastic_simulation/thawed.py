"""Values that are not frozen, and enumerations without a hook, while many plans are run.

A frozen dataclass sets each of its fields through `object.__setattr__`, and building values takes
an eighth of a run's time. That nothing changes a value is checked by mypy, and by every run of
the suite, in which they are frozen; a campaign runs the same classes without.

Before Python 3.12, classes of `enum` have a `__getattr__` for names that are no attributes. Members
are, and yet each `Link.JOINED` takes four times as long where a class has one: a run looks at
3 000, which was a tenth of its instructions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["thawed"]

_ROOMS = ("pytest_elastic.rendezvous.", "pytest_elastic.events.", "pytest_elastic.agent.")
_FREEZING = ("__setattr__", "__delattr__")
_HOOK = "__getattr__"


@contextlib.contextmanager
def thawed() -> Iterator[None]:
    """Let the values of the launcher's machines be built by plain assignments for a while."""
    restored: list[tuple[type, dict[str, Any]]] = []
    hook = vars(enum.EnumMeta).get(_HOOK)
    try:
        if hook is not None:
            delattr(enum.EnumMeta, _HOOK)
        for value in _values():
            restored.append((value, {n: vars(value)[n] for n in ("__init__", *_FREEZING)}))
            _thaw(value)
        yield
    finally:
        if hook is not None:
            setattr(enum.EnumMeta, _HOOK, hook)
        for value, own in restored:
            for name, method in own.items():
                setattr(value, name, method)


def _values() -> list[type]:
    """Return the frozen dataclasses of the machines that were imported."""
    modules = [each for name, each in sorted(sys.modules.items()) if name.startswith(_ROOMS)]
    found = {
        each: None
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
        if vars(each).keys() >= {"__init__", "__dataclass_fields__", *_FREEZING}
    }
    return list(found)


def _thaw(value: type) -> None:
    """Let the values of a class be built, and changed, as if it were not frozen."""
    plain = _plain_init(value)
    for name in _FREEZING:
        delattr(value, name)
    type.__setattr__(value, "__init__", plain)


@functools.cache  # a campaign thaws them for every chunk of its seeds
def _plain_init(value: type) -> Callable[..., None]:
    """Return the `__init__` that a class would have if it were not frozen."""
    body: dict[str, Any] = {"__annotations__": {}}
    for field in dataclasses.fields(value):
        body["__annotations__"][field.name] = field.type
        body[field.name] = dataclasses.field(
            default=field.default, default_factory=field.default_factory, kw_only=field.kw_only
        )
    if hasattr(value, "__post_init__"):
        body["__post_init__"] = value.__post_init__
    twin: type = dataclasses.dataclass(type(value.__name__, (), body))
    plain: Callable[..., None] = vars(twin)["__init__"]
    return plain
