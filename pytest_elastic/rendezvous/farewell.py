"""Who has heard how the job ends, and who may still come to ask (R10)."""

from __future__ import annotations

from pytest_elastic.rendezvous.model import Settings

__all__ = ["Farewell"]

# How long after its lease a member that was lost may still come and ask what has become of the
# job: a member without contact gives up four seconds after its lease, and goes for good.
_MAY_RETURN_S = 5.0


class Farewell:
    """Keeps the list from the beginning: whoever is lost today may ask at the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._unaware: set[str] = set()
        self._may_return: dict[str, float] = {}

    @property
    def is_known_to_all(self) -> bool:
        """Everybody who was told has acknowledged it."""
        return not self._unaware

    def part_from(self, incarnation: str, now: float) -> None:
        """Note that a node cannot be reached now, and may come back."""
        self._unaware.discard(incarnation)
        self._may_return[incarnation] = now

    def lose(self, incarnation: str, now: float) -> None:
        """Note that a node that was being told is out of reach; one that knows may well go."""
        if incarnation in self._unaware:
            self.part_from(incarnation, now)

    def forget(self, incarnation: str) -> None:
        """Note that a node needs no word: it knows the end, or is gone for good."""
        self._unaware.discard(incarnation)

    def meet(self, incarnation: str) -> None:
        """Note that a node is here (again)."""
        self._may_return.pop(incarnation, None)

    def tell(self, incarnation: str) -> None:
        """Note that a node is being told, and has to acknowledge it."""
        self._unaware.add(incarnation)

    def give_up_the_unaware(self, now: float) -> None:
        """Wait no longer for those who have not acknowledged; they may still ask."""
        for incarnation in sorted(self._unaware):
            self.part_from(incarnation, now)

    def stays_until(self, over_at: float) -> float:
        """Return until when somebody may ask, once everybody who could be reached has been told."""
        patience_s = self._settings.lease_s + _MAY_RETURN_S
        last = max(self._may_return.values(), default=over_at - patience_s)
        return min(last + patience_s, over_at + self._settings.linger_s)
