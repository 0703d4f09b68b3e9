"""The registry in which a key names the leader: in etcd, or in a file.

No node hosts anything, and no node has to stay. What is decided about the key is in
`rendezvous.registries.key_holder`; here are the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_elastic.backends.registry_place import RegistryCalls, Where
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.key_holder import KeyHolder
from pytest_elastic.rendezvous.registries.registry import NodeSide
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import WriteRecord

__all__ = ["KeyRegistry"]


class KeyRegistry:
    """One node's view of the key (see `rendezvous.registries.registry.Registry`)."""

    def __init__(
        self,
        loop: Loop,
        *,
        settings: Settings,
        where: Where,
        calls: RegistryCalls,
        credentials: Credentials | None = None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._where = where
        self._calls = calls
        self._credentials = credentials
        self._holder: KeyHolder | None = None  # before it is opened
        self._side: NodeSide

    # --- what the driver asks for ----------------------------------------------------------------

    def open(self, side: NodeSide) -> None:
        """Join: the first that looks for the leader finds that it is itself."""
        self._side = side
        self._holder = KeyHolder(
            self, side, self._settings, name=self._where.name, credentials=self._credentials
        )
        side.tell_follower(v.Start())

    def find(self, within_s: float) -> None:
        """Find the leader, or become it if there is none."""
        holder = self._opened
        self._side.look_at_place(lambda: holder.find(within_s))

    def announce(self, known: Sequence[Node]) -> None:
        """Do nothing: the key announces the leader."""

    def remember(self) -> None:
        """Keep nothing: what stands in the registry is enough."""

    def write(self, written: WriteRecord) -> None:
        """Write a record down while the key is ours."""
        self._opened.write(written)

    def end(self) -> None:
        """Give the key back, so that another can be named at once."""
        self._opened.resign()

    def close(self, on_closed: Callable[[], None]) -> None:
        """Give the key back, so that no node waits for its lease."""
        if self._holder is None:
            on_closed()
        else:
            self._holder.resign(on_closed)

    @property
    def _opened(self) -> KeyHolder:
        assert self._holder is not None, "a registry is opened before it is used"
        return self._holder

    # --- what the key holder stands in (`KeyLoop`) -----------------------------------------------

    def now(self) -> float:
        """Return the time."""
        return self._loop.now()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back then."""
        return self._loop.call_at(when, callback)

    def ask(
        self,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Make a call where it may block; calls back with (value, error)."""
        self._calls.ask_registry(
            self._where.kind,
            call,
            {**self._where.arguments, **arguments},
            timeout_s=timeout_s,
            on_done=on_done,
        )
