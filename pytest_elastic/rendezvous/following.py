"""How a coordinator begins that follows another (R11): with its round, and members yet to come."""

from __future__ import annotations

import dataclasses

from pytest_elastic.rendezvous.coordinator_phases import Phase
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.farewell import Farewell
from pytest_elastic.rendezvous.gathering import Gathering
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.round import inherited_round
from pytest_elastic.rendezvous.running import Running
from pytest_elastic.rendezvous.sealing import Sealing

__all__ = ["follow"]


def follow(
    heritage: Heritage,
    desk: Desk,
    now: float,
    *,
    sealing: Sealing,
    running: Running,
    gathering: Gathering,
    farewell: Farewell,
) -> Phase:
    """Tell each part what it goes on with; return the phase to begin in."""
    settings, mandate = desk.settings, desk.mandate
    seal = dataclasses.replace(heritage.seal, term=desk.term)
    is_clear = heritage.commit is not None
    sealing.go_on(
        max(heritage.newest_round, seal.round),
        restarts_used=max(heritage.restarts_used, seal.restart_count),
        idle_rounds=seal.idle_rounds + (not is_clear),
    )
    mandate.rest_on(heritage.electorates)
    for incarnation, heard_at in heritage.heard_at.items():
        mandate.hear(incarnation, heard_at)
    leases_end = heritage.contact_at + settings.lease_s
    roster = desk.members.inherit(
        [entry for entry in seal.roster if entry.incarnation not in heritage.left],
        seal.round,
        until=leases_end,
        lost=seal.sealed_by,
        now=now,
    )
    committed = running.round = inherited_round(
        seal, heritage, roster, committed_at=now - settings.min_round_s
    )
    for incarnation, since_round in sorted(heritage.left.items()):
        mandate.excuse(incarnation, since_round)
    farewell.expect_strangers(now)
    if seal.spares:
        gathering.wait_for_spares(now + settings.beat_interval_s)
    if heritage.ending is not None:
        farewell.go_on(heritage.ending, now)
        return Phase.ENDING
    if is_clear:
        return Phase.RUNNING
    # Whether its workers run is not known, nor those of the round before.
    sealing.close_gate(leases_end + settings.drift_s)
    committed.stopped_at = now
    return Phase.STOPPING
