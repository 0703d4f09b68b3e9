"""What a node takes names for: its table of hosts, and the answers of its own name service.

Pure. A node reads names from /etc/hosts. A name that a fault changes is taken out of one node's
copy, so that a resolver asks a name service next (RFC 1035, as far as an address is
asked for), which is ours: it answers with a wrong address, that there is no such name, or late, and
it knows which node asked for which name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_elastic.errors import UsageError

__all__ = [
    "MAX_SLOW_S",
    "NameChange",
    "Question",
    "answer_to",
    "hosts_text",
    "question_in",
    "read_hosts",
]

# glibc waits for at most 30 s for an answer, whatever it is told.
MAX_SLOW_S = 25.0

_HEAD = struct.Struct(">HHHHHH")
_A, _IN = 1, 1
_ANSWER, _RECURSION, _NO_SUCH_NAME = 0x8000, 0x0180, 3
_NAME_AT_QUESTION = 0xC00C
_TTL_S = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NameChange:
    """What one name is to one node: another `address` (None: its own), after `slow_s` seconds.

    `owner` is whose change it is.
    """

    address: str | None = None
    is_missing: bool = False
    slow_s: float = 0.0
    owner: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.slow_s <= MAX_SLOW_S:
            raise UsageError(
                f"cannot have a name looked up in {self.slow_s:g} s: 0 to {MAX_SLOW_S:g} s are"
                " expected, for resolvers give up after 30"
            )
        if self.is_missing and (self.address is not None or self.slow_s):
            raise UsageError("a name that is missing has no address and is not slow")


def hosts_text(names: Mapping[str, str]) -> str:
    """Return a table of hosts: addresses by name.

    All IPv4 lines come first: gloo and the store take the first match. The mapped lines spare torch
    a warning that a socket's host name cannot be found.
    """
    lines = ["127.0.0.1 localhost"]
    lines += [f"{address} {name}" for name, address in names.items()]
    lines += ["::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"::ffff:{address} {name}" for name, address in names.items()]
    return "\n".join([*lines, ""])


def read_hosts(text: str) -> dict[str, str]:
    """Return the first address of each name in a table of hosts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            found.setdefault(name, address)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a name service was asked: `id` and `raw` are for the answer."""

    id: int
    name: str
    asks_for_address: bool
    raw: bytes


def question_in(message: bytes) -> Question | None:
    """Return the question of a DNS query; None for what is none."""
    if len(message) < _HEAD.size:
        return None
    number, flags, questions, *_ = _HEAD.unpack_from(message)
    if flags & _ANSWER or questions != 1:
        return None
    labels: list[str] = []
    place = _HEAD.size
    while place < len(message) and (length := message[place]):
        labels.append(message[place + 1 : place + 1 + length].decode("ascii", "replace"))
        place += 1 + length
    if place + 5 > len(message) or any(byte > 63 for byte in map(len, labels)):
        return None
    kind, kind_of_net = struct.unpack_from(">HH", message, place + 1)
    return Question(
        id=number,
        name=".".join(labels).lower(),
        asks_for_address=kind == _A and kind_of_net == _IN,
        raw=message[_HEAD.size : place + 5],
    )


def answer_to(question: Question, address: str | None) -> bytes:
    """Return the answer: an IPv4 address, or that there is no such name (None).

    Asked for anything but an IPv4 address, a name that is known has nothing to tell.
    """
    flags = _ANSWER | _RECURSION | (_NO_SUCH_NAME if address is None else 0)
    record = b""
    if address is not None and question.asks_for_address:
        parts = bytes(int(part) for part in address.split("."))
        record = struct.pack(">HHHIH", _NAME_AT_QUESTION, _A, _IN, _TTL_S, len(parts)) + parts
    return _HEAD.pack(question.id, flags, 1, bool(record), 0, 0) + question.raw + record
