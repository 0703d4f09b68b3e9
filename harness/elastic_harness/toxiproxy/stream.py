"""One direction of a proxied connection: the bytes, and the chain of toxics they pass.

A `Stream` is a machine: the driver puts in what it reads, asks for what may be written, and calls
again at `wake_at`. It asks for more only once the last was written, so that a slow reader slows
everything before it down, as a direct connection would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from elastic_harness.toxiproxy.toxics import TOXIC_TYPES, Ending, Item, Stage

__all__ = ["Direction", "Stream", "Toxic"]


class Direction(Enum):
    """Which way bytes go."""

    UPSTREAM = "upstream"  # from the client to the server
    DOWNSTREAM = "downstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxic:
    """One toxic of a proxy, as the API shows it; `stream` as its user spelled it."""

    name: str
    type: str
    stream: str
    toxicity: float
    attributes: Mapping[str, int]

    @property
    def direction(self) -> Direction:
        """Return which way the bytes go that it harms."""
        return Direction(self.stream.lower())

    def changed(self, attributes: Mapping[str, int], toxicity: float) -> Toxic:
        """Return the toxic with some attributes and its toxicity replaced."""
        return replace(self, attributes={**self.attributes, **attributes}, toxicity=toxicity)


class _Seat:
    """A toxic's place in one stream, whether or not this connection is one of those it harms."""

    def __init__(self, toxic: Toxic, chance: Random) -> None:
        self.toxic = toxic
        self._chance = chance
        # Drawn once: a connection is harmed or is not, whatever happens to other toxics.
        self._draw = chance.random()
        self.stage = self._make_stage()

    @property
    def is_harmed(self) -> bool:
        return self._draw < self.toxic.toxicity

    def change(self, toxic: Toxic, now: float) -> list[Item]:
        was_harmed, self.toxic = self.is_harmed, toxic
        if was_harmed and self.is_harmed:
            return self.stage.change(toxic.attributes, now)
        if not was_harmed and not self.is_harmed:
            return []
        items = self.stage.release(now)
        self.stage = self._make_stage()
        return items

    def _make_stage(self) -> Stage:
        kind = TOXIC_TYPES[self.toxic.type].stage if self.is_harmed else Stage
        return kind(self.toxic.attributes, self._chance)


class Stream:
    """The chain of one direction. `chance_for` makes the stream of draws for a toxic, by name.

    `on_harmed` is told the name of a toxic whenever it has something to do.
    """

    def __init__(
        self,
        chance_for: Callable[[str], Random],
        on_harmed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._chance_for = chance_for
        self._on_harmed = on_harmed
        self._seats: list[_Seat] = []
        self._out: deque[Item] = deque()
        self._has_ended = False

    @property
    def has_room(self) -> bool:
        """Tell whether to read more from the sender."""
        if self._seats:
            return self._seats[0].stage.has_room
        return not self._out and not self._has_ended

    @property
    def is_to_be_reset(self) -> bool:
        """Tell whether a reset waits for earlier bytes to be read, which it need not."""
        return Ending.RESET in self._out

    def take(self, item: Item, now: float) -> None:
        """Put in what was read."""
        self._hand_on(0, item, now)

    def give(self, now: float) -> Item | None:
        """Return the next item to be written, if there is one."""
        self.step(now)
        return self._out.popleft() if self._out else None

    def step(self, now: float) -> None:
        """Move everything as far as it may go by `now`."""
        while self._move(now):
            pass

    def wake_at(self) -> float | None:
        """Return when time alone will move something."""
        times = [
            seat.stage.wake_at() for index, seat in enumerate(self._seats) if self._may_give(index)
        ]
        return min((time for time in times if time is not None), default=None)

    def add(self, toxic: Toxic, now: float) -> None:
        """Put a toxic at the end of the chain."""
        self._seats.append(_Seat(toxic, self._chance_for(toxic.name)))
        self.step(now)

    def change(self, toxic: Toxic, now: float) -> None:
        """Give the toxic of that name other attributes; what it held leaves at once."""
        index = self._index(toxic.name)
        for item in self._seats[index].change(toxic, now):
            self._hand_on(index + 1, item, now)
        self.step(now)

    def remove(self, name: str, now: float) -> None:
        """Take a toxic out of the chain; what it held leaves at once."""
        index = self._index(name)
        seat = self._seats[index]
        items = seat.stage.release(now)
        if seat.stage.closes_when_removed and Ending.CLOSE not in items:
            items = [*(item for item in items if isinstance(item, bytes)), Ending.CLOSE]
        del self._seats[index]
        for item in items:
            self._hand_on(index, item, now)
        self.step(now)

    def _move(self, now: float) -> bool:
        """Move one item out of each stage, the last first; tell whether anything moved."""
        has_moved = False
        for index in range(len(self._seats) - 1, -1, -1):
            if not self._may_give(index):
                continue
            item = self._seats[index].stage.give(now)
            if item is not None:
                self._hand_on(index + 1, item, now)
                has_moved = True
        return has_moved

    def _may_give(self, index: int) -> bool:
        """Tell whether what the stage at `index` gives has somewhere to go."""
        if self._seats[index].stage.gives_only_resets:
            return True
        if index + 1 < len(self._seats):
            return self._seats[index + 1].stage.has_room
        return not self._out

    def _hand_on(self, index: int, item: Item, now: float) -> None:
        """Put an item into the stage at `index`, or out of the chain."""
        if index < len(self._seats):
            seat = self._seats[index]
            if seat.is_harmed and seat.stage.harms(item):
                self._on_harmed(seat.toxic.name)
            seat.stage.take(item, now)
        elif not self._has_ended:
            self._out.append(item)
            self._has_ended = isinstance(item, Ending)

    def _index(self, name: str) -> int:
        return next(i for i, seat in enumerate(self._seats) if seat.toxic.name == name)
