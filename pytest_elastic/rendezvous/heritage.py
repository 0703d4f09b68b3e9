"""What a coordinator begins with that follows another one (R11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_elastic.rendezvous.messages import Commit, JobEnding, Seal
from pytest_elastic.rendezvous.model import Electorate, RosterEntry

__all__ = ["Heritage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heritage:
    """The last round that may be committed, and what binds whoever goes on with it.

    `seal` is the highest that was acknowledged, `commit` that of the same round if anybody has seen
    it. `electorates` have to give a quorum to each round until one is committed. `contact_at`, on
    the clock of the node that was elected: no coordinator of before was heard later by those who
    agreed, so that no worker of before runs a lease after that. `heard_at` is when each of them was
    asked for its agreement. `left` are those who have renounced their voices, each with the round
    from whose electorate on it does not count; their workers are gone. `lost` is the name of the
    coordinator before, and `has_left` whether it left on purpose.
    """

    term: int
    seal: Seal
    commit: Commit | None
    electorates: Sequence[Electorate]
    contact_at: float
    lost: str
    heard_at: Mapping[str, float] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    newest_round: int = 0
    restarts_used: int = 0
    ending: JobEnding | None = None
    has_left: bool = False

    @property
    def why_followed(self) -> str:
        """Why another coordinator follows the one before: that one left, or was lost."""
        return f"{self.lost} left" if self.has_left else f"{self.lost} was lost"

    @property
    def is_of_first_seal(self) -> bool:
        """Whether nobody knows that any round was committed: another first one may have been."""
        return self.commit is None and not self.seal.electorates

    @property
    def known(self) -> Sequence[RosterEntry]:
        """Everybody who may look for whoever decides now, some of them more than once.

        Those of the rounds before it, too: one that was given up has nobody else to ask, if it
        knows of nobody who has come since.
        """
        before = (*self.electorates, *self.seal.electorates)
        return (*self.seal.roster, *(entry for each in before for entry in each.members))
