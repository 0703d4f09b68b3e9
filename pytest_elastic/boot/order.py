"""The order a warm interpreter starts with: one JSON object in one environment variable.

It is taken out of the environment before anything else runs, so that no child can inherit it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from pytest_elastic.errors import InternalError

__all__ = ["VARIABLE", "WarmOrder", "encode_order", "restore", "take_order"]

VARIABLE = "PYTEST_ELASTIC_ROLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOrder:
    """What a warm interpreter is to be.

    `role` is "module:attribute", a callable that takes `argument` (a JSON object) and returns a
    `Role`. `preload` names modules to import first. `replaced` holds what the caller's environment
    had (None: nothing) where the interpreter was started with a value of ours.
    """

    role: str
    argument: Mapping[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    replaced: Mapping[str, str | None] = field(default_factory=dict)


def encode_order(order: WarmOrder) -> str:
    """Return the order as the text of the environment variable."""
    return json.dumps(dataclasses.asdict(order), separators=(",", ":"))


def take_order(environ: MutableMapping[str, str]) -> WarmOrder:
    """Take the order out of `environ`; what it replaced there is given back by `restore`."""
    text = environ.pop(VARIABLE)
    try:
        fields = json.loads(text)
        fields["preload"] = tuple(fields["preload"])
        order = WarmOrder(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise InternalError(f"{VARIABLE} does not hold an order: {text!r:.200}") from error
    return order


def restore(order: WarmOrder, environ: MutableMapping[str, str]) -> None:
    """Give `environ` back what the caller had where the interpreter was started with ours."""
    for name, value in order.replaced.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
