"""Values, and the JSON objects that they are sent and written down as.

Never pickle: what comes from a socket or a file is checked against the types of a value's fields,
and whatever is not exactly such a value is refused with a reason. A class says all that there is to
say about a value's format, so a new field cannot be forgotten. `msgspec.to_builtins` makes the
object, `msgspec.convert` the value, or it raises `msgspec.ValidationError`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from typing_extensions import dataclass_transform

__all__ = ["Float", "Integer", "Message", "Value", "kind_of"]

# What another process may say: a number of thousands of digits is read, and cannot be written or
# counted; one that is infinite or none cannot be compared.
Integer = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]
Float = Annotated[float, msgspec.Meta(ge=-(2.0**63), le=2.0**63)]


def kind_of(cls: type[Any] | str) -> str:
    """Return a class's name in snake case: JoinRequest is "join_request"."""
    name = cls if isinstance(cls, str) else cls.__name__
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields with types, which do not change; values of a class are equal if their fields are."""


class Message(Value, tag_field="kind", tag=kind_of):
    """A value that says of which kind it is where it is sent."""
