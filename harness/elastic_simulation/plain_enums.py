"""Enumerations without a hook, while many plans are run.

Before Python 3.12, classes of `enum` have a `__getattr__` for names that are no attributes. Members
are, and yet each `Link.JOINED` takes four times as long where a class has one: a run looks at
3 000, which was a tenth of its instructions.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator

__all__ = ["plain_enums"]

_HOOK = "__getattr__"


@contextlib.contextmanager
def plain_enums() -> Iterator[None]:
    """Let members be looked up as the attributes that they are, for a while."""
    hook = vars(enum.EnumMeta).get(_HOOK)
    if hook is None:
        yield
        return
    delattr(enum.EnumMeta, _HOOK)
    try:
        yield
    finally:
        setattr(enum.EnumMeta, _HOOK, hook)
