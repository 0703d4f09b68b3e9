"""The eight toxics: what each does to the bytes of one direction of one connection.

A toxic at work is a `Stage`. Chunks and the stream's `Ending` are put in with `take` and come out
of `give`, never earlier than the toxic allows and always in order. A stage knows no socket and
reads no clock: `now` is the caller's, in seconds, `wake_at` says when asking again pays, and
`has_room` is how a slow stage slows its sender down.

What each toxic does follows Shopify's server 2.12; where that server stalls, crashes or loses data
without need, we do better and `docs/toxiproxy.md` says so.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from typing_extensions import override

from pytest_elastic.errors import UsageError

__all__ = [
    "TOXIC_TYPES",
    "Ending",
    "Item",
    "Stage",
    "ToxicType",
    "checked_attributes",
    "slices",
]

# The real server queues 1 024 chunks of 32 KiB behind a latency. As many bytes here; more chunks,
# because small messages are what a control connection sends.
_LATENCY_BYTES = 32 << 20
_LATENCY_CHUNKS = 16384
# A rate's smallest unit of time: pieces are what may pass in this time, and a sender that was held
# up elsewhere catches up on no more than this.
_PIECE_MS = 100


class Ending(Enum):
    """The last item of a stream."""

    END = "end"  # the sender will send no more; the other direction goes on
    CLOSE = "close"  # a toxic or a broken socket ends the whole connection
    RESET = "reset"  # a toxic ends the whole connection, and both sides are to see a reset


Item = bytes | Ending


class Stage:
    """What all toxics have in common, and by itself the one that changes nothing.

    `attributes` may be replaced at any time with `change`.
    """

    # Bytes were lost under this toxic, so a connection must not go on once it is gone.
    closes_when_removed = False
    # Gives nothing but a reset, for which earlier bytes do not have to be read first.
    gives_only_resets = False

    def __init__(self, attributes: Mapping[str, int], chance: random.Random) -> None:
        self._attributes = attributes
        self._chance = chance
        self._held: deque[Item] = deque()
        self._is_over = False

    @property
    def has_room(self) -> bool:
        """Tell whether to put more in. Putting in more all the same is allowed, and kept."""
        return not self._held and not self._is_over

    def harms(self, item: Item) -> bool:
        """Tell whether it does something to what is about to be put in."""
        return isinstance(item, bytes)

    def take(self, item: Item, now: float) -> None:
        """Put in a chunk, or the end, after which nothing may follow."""
        if not self._is_over:
            self._held.append(item)

    def give(self, now: float) -> Item | None:
        """Return the next item that may leave by `now`, or None."""
        return self._held.popleft() if self._held else None

    def wake_at(self) -> float | None:
        """Return when `give` will have something that it has not yet, if only time is missing."""
        return None

    def release(self, now: float) -> list[Item]:
        """Return everything that is held, in order, because the toxic is removed or changed."""
        items, self._held = list(self._held), deque()
        return items

    def change(self, attributes: Mapping[str, int], now: float) -> list[Item]:
        """Go on with other attributes; return what was held until now and may leave at once."""
        self._attributes = attributes
        return self.release(now)

    def _finish(self, ending: Ending) -> Ending:
        """End the stream from here: whatever is still put in is lost."""
        self._is_over = True
        self._held.clear()
        return ending


class Latency(Stage):
    """Each chunk leaves a while after it came; the end leaves behind the last of them."""

    def __init__(self, attributes: Mapping[str, int], chance: random.Random) -> None:
        super().__init__(attributes, chance)
        self._due: deque[float] = deque()
        self._bytes = 0

    @property
    @override
    def has_room(self) -> bool:
        return self._bytes < _LATENCY_BYTES and len(self._held) < _LATENCY_CHUNKS

    @override
    def take(self, item: Item, now: float) -> None:
        due = now
        if isinstance(item, bytes):
            due += max(self._delay_ms(), 0.0) / 1000
            self._bytes += len(item)
        # A late chunk holds up those behind it: the order of bytes is TCP's promise.
        self._held.append(item)
        self._due.append(due)

    @override
    def give(self, now: float) -> Item | None:
        if not self._due or self._due[0] > now:
            return None
        self._due.popleft()
        item = self._held.popleft()
        if isinstance(item, bytes):
            self._bytes -= len(item)
        return item

    @override
    def wake_at(self) -> float | None:
        return self._due[0] if self._due else None

    @override
    def release(self, now: float) -> list[Item]:
        self._due.clear()
        self._bytes = 0
        return super().release(now)

    def _delay_ms(self) -> float:
        latency, jitter = self._attributes["latency"], self._attributes["jitter"]
        return latency + (self._chance.randrange(-jitter, jitter) if jitter > 0 else 0)


class Bandwidth(Stage):
    """At most `rate` thousand bytes a second, in pieces; at a rate of 0 nothing passes."""

    _due: float | None = None
    _late_s = 0.0  # by how much the piece before left too late, to be made up for

    @override
    def take(self, item: Item, now: float) -> None:
        super().take(item, now)
        if len(self._held) == 1:
            self._plan(now)

    @override
    def give(self, now: float) -> Item | None:
        if self._due is None or self._due > now:
            return None
        self._late_s = min(now - self._due, _PIECE_MS / 1000)
        item = self._held.popleft()
        if isinstance(item, bytes) and len(item) > self._piece_bytes():
            self._held.appendleft(item[self._piece_bytes() :])
            item = item[: self._piece_bytes()]
        self._plan(now)
        return item

    @override
    def wake_at(self) -> float | None:
        return self._due

    @override
    def release(self, now: float) -> list[Item]:
        self._due = None
        self._late_s = 0.0
        return super().release(now)

    def _piece_bytes(self) -> int:
        return self._attributes["rate"] * _PIECE_MS

    def _plan(self, now: float) -> None:
        """Decide when the first held item leaves."""
        self._due = None
        if not self._held:
            return
        first, rate = self._held[0], self._attributes["rate"]
        if isinstance(first, Ending):
            self._due = now
        elif rate > 0:
            piece_s = min(len(first), self._piece_bytes()) / (rate * 1000)
            self._due = now - self._late_s + piece_s


class SlowClose(Stage):
    """The end, and only the end, leaves `delay` late."""

    _due: float | None = None

    @override
    def harms(self, item: Item) -> bool:
        return isinstance(item, Ending)

    @override
    def take(self, item: Item, now: float) -> None:
        self._held.append(item)
        if isinstance(item, Ending):
            self._due = now + self._attributes["delay"] / 1000

    @override
    def give(self, now: float) -> Item | None:
        if not self._held or (isinstance(self._held[0], Ending) and not self._is_due(now)):
            return None
        return self._held.popleft()

    @override
    def wake_at(self) -> float | None:
        return self._due if self._held else None

    @override
    def release(self, now: float) -> list[Item]:
        self._due = None
        return super().release(now)

    @override
    def change(self, attributes: Mapping[str, int], now: float) -> list[Item]:
        """The wait for the close starts anew."""
        self._attributes = attributes
        if self._due is not None:
            self._due = now + attributes["delay"] / 1000
        return []

    def _is_due(self, now: float) -> bool:
        return self._due is not None and self._due <= now


class Timeout(Stage):
    """Bytes are lost; after `timeout` without any, the connection is closed (0: never)."""

    closes_when_removed = True

    _quiet_since: float | None = None

    @property
    @override
    def has_room(self) -> bool:
        return not self._is_over

    @override
    def take(self, item: Item, now: float) -> None:
        self._quiet_since = now
        if isinstance(item, Ending):
            self._held.append(item)

    @override
    def give(self, now: float) -> Item | None:
        if self._held or self._is_over:
            return super().give(now)
        if self._quiet_since is None:
            self._quiet_since = now
        due = self.wake_at()
        return self._finish(Ending.CLOSE) if due is not None and due <= now else None

    @override
    def wake_at(self) -> float | None:
        timeout_ms = self._attributes["timeout"]
        if timeout_ms <= 0 or self._quiet_since is None or self._is_over:
            return None
        return self._quiet_since + timeout_ms / 1000

    @override
    def change(self, attributes: Mapping[str, int], now: float) -> list[Item]:
        self._quiet_since = now
        return super().change(attributes, now)


class Slicer(Stage):
    """Chunks leave in slices of about `average_size`, each `delay` microseconds after another."""

    _free_at = float("-inf")

    @override
    def harms(self, item: Item) -> bool:
        average_size, size_variation = self._sizes
        return isinstance(item, bytes) and _is_cut(item, average_size, size_variation)

    @override
    def take(self, item: Item, now: float) -> None:
        if isinstance(item, Ending):
            self._held.append(item)
            return
        self._held.extend(slices(item, *self._sizes, self._chance))

    @override
    def give(self, now: float) -> Item | None:
        if not self._held or self._free_at > now:
            return None
        self._free_at = now + max(self._attributes["delay"], 0) / 1_000_000
        return self._held.popleft()

    @override
    def wake_at(self) -> float | None:
        return self._free_at if self._held else None

    @override
    def release(self, now: float) -> list[Item]:
        self._free_at = float("-inf")
        items = super().release(now)
        rest = b"".join(item for item in items if isinstance(item, bytes))
        return [*([rest] if rest else []), *(item for item in items if isinstance(item, Ending))]

    @property
    def _sizes(self) -> tuple[int, int]:
        return self._attributes["average_size"], self._attributes["size_variation"]


class LimitData(Stage):
    """The connection is closed once `bytes` bytes have passed since the toxic was added."""

    _taken = 0
    _passed = 0

    @override
    def harms(self, item: Item) -> bool:
        return isinstance(item, bytes) and self._taken + len(item) >= self._attributes["bytes"]

    @override
    def take(self, item: Item, now: float) -> None:
        self._taken += len(item) if isinstance(item, bytes) else 0
        super().take(item, now)

    @override
    def give(self, now: float) -> Item | None:
        item = super().give(now)
        if not isinstance(item, bytes):
            return item
        left = max(self._attributes["bytes"] - self._passed, 0)
        self._passed += min(len(item), left)
        if len(item) < left:
            return item
        ending = self._finish(Ending.CLOSE)
        if left == 0:
            return ending
        self._held.append(ending)
        return item[:left]

    @override
    def change(self, attributes: Mapping[str, int], now: float) -> list[Item]:
        self._attributes = attributes
        return []


class ResetPeer(Stage):
    """`timeout` after the first bytes, or the end, both sides see a reset. Bytes are held."""

    gives_only_resets = True

    _since: float | None = None

    @override
    def take(self, item: Item, now: float) -> None:
        self._held.append(item)
        if self._since is None:
            self._since = now

    @override
    def give(self, now: float) -> Item | None:
        due = self.wake_at()
        return self._finish(Ending.RESET) if due is not None and due <= now else None

    @override
    def wake_at(self) -> float | None:
        if self._since is None or self._is_over:
            return None
        return self._since + max(self._attributes["timeout"], 0) / 1000

    @override
    def change(self, attributes: Mapping[str, int], now: float) -> list[Item]:
        """The wait for the reset starts anew."""
        self._attributes = attributes
        if self._since is not None:
            self._since = now
        return []


def slices(
    chunk: bytes, average_size: int, size_variation: int, chance: random.Random
) -> Iterator[bytes]:
    """Cut a chunk in two until no part is longer than the average and the variation allow.

    An average below 1 cuts nothing. (The real server dies of it.)
    """
    if not _is_cut(chunk, average_size, size_variation):
        yield chunk
        return
    middle = len(chunk) // 2
    if size_variation > 0:
        middle += chance.randrange(-size_variation, size_variation)
    middle = min(max(middle, 1), len(chunk) - 1)
    yield from slices(chunk[:middle], average_size, size_variation, chance)
    yield from slices(chunk[middle:], average_size, size_variation, chance)


def _is_cut(chunk: bytes, average_size: int, size_variation: int) -> bool:
    is_larger = len(chunk) - average_size > max(size_variation, 0)
    return is_larger and average_size >= 1 and len(chunk) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ToxicType:
    """What a type of toxic is made of: its attributes, in the order of the API, and its stage."""

    attributes: tuple[str, ...]
    stage: Callable[[Mapping[str, int], random.Random], Stage]


TOXIC_TYPES: Mapping[str, ToxicType] = MappingProxyType(
    {
        "latency": ToxicType(attributes=("latency", "jitter"), stage=Latency),
        "bandwidth": ToxicType(attributes=("rate",), stage=Bandwidth),
        "slow_close": ToxicType(attributes=("delay",), stage=SlowClose),
        "timeout": ToxicType(attributes=("timeout",), stage=Timeout),
        "slicer": ToxicType(attributes=("average_size", "size_variation", "delay"), stage=Slicer),
        "limit_data": ToxicType(attributes=("bytes",), stage=LimitData),
        "reset_peer": ToxicType(attributes=("timeout",), stage=ResetPeer),
        "noop": ToxicType(attributes=(), stage=Stage),
    }
)

# Attributes that mean nothing, or worse, at 0 or when left out.
_AT_LEAST_ONE = {("slicer", "average_size")}


def checked_attributes(
    kind: str, attributes: Mapping[str, float], *, all_of_them: bool
) -> dict[str, int]:
    """Return the attributes as the server wants them: whole numbers, none below 0.

    Raises UsageError. Attributes of an unknown type are looked at as numbers only.
    """
    known = TOXIC_TYPES.get(kind)
    checked: dict[str, int] = {}
    for name, value in attributes.items():
        if known is not None and name not in known.attributes:
            has = ", ".join(known.attributes) or "none"
            raise UsageError(f"toxic {kind!r} has no attribute {name!r}; it has {has}")
        least = 1 if (kind, name) in _AT_LEAST_ONE else 0
        if not float(value).is_integer() or value < least:
            raise UsageError(
                f"{name} of toxic {kind!r} is a whole number, at least {least}, not {value!r}"
            )
        checked[name] = int(value)
    for kind_with, name in _AT_LEAST_ONE:
        if all_of_them and kind == kind_with and name not in checked:
            raise UsageError(
                f"toxic {kind!r} needs {name}", hint="Without it, the real server crashes."
            )
    return checked
