"""What the parts of a coordinator share: settings, members, one list of orders."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.mandate import Mandate
from pytest_elastic.rendezvous.membership import Membership
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.outbox import Outbox
from pytest_elastic.rendezvous.peer import Peer
from pytest_elastic.rendezvous.reachability import Reachability

__all__ = ["Desk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Handed to each part; `node` is the one that the coordinator runs on."""

    settings: Settings
    node: Node
    term: int
    out: Outbox
    members: Membership
    mandate: Mandate
    deadlines: Deadlines
    reach: Reachability

    def is_own(self, peer: Peer) -> bool:
        """Tell whether a member is the coordinator's own."""
        return peer.node.incarnation == self.node.incarnation
