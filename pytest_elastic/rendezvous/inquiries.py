"""What the machines of one node want to know of other agents, asked at their ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.agent_probe import Call, ask_agent
from pytest_elastic.rendezvous.messages import (
    Answer,
    JobEnding,
    Place,
    PlaceAnswer,
    PlaceRequest,
    ProbeAnswer,
    ProbeRequest,
    VoteAnswer,
)
from pytest_elastic.rendezvous.model import RosterEntry
from pytest_elastic.rendezvous.probing import outcome_of

__all__ = ["Inquiries"]


class Inquiries:
    """Turns commands of the machines into calls, and what comes of these into inputs."""

    def __init__(
        self,
        loop: Loop,
        run_id: str,
        *,
        credentials: Credentials | None,
        tell_member: Callable[[v.MemberInput], None],
        tell_coordinator: Callable[[v.CoordinatorInput], None],
    ) -> None:
        self._loop = loop
        self._run_id = run_id
        self._credentials = credentials
        self._tell_member = tell_member
        self._tell_coordinator = tell_coordinator

    def probe_for_coordinator(self, order: v.Probe) -> None:
        """Ask whether a suspect's agent lives."""
        self._probe(order, self._tell_coordinator)

    def probe_for_member(self, order: v.Probe) -> None:
        """Ask whether a neighbour's agent can be reached."""
        self._probe(order, self._tell_member)

    def _probe(self, order: v.Probe, pass_on: Callable[[v.ProbeAnswered], None]) -> None:
        def tell(answer: Answer | None, outcome: v.Outcome) -> None:
            said = answer if isinstance(answer, ProbeAnswer) else None
            pass_on(outcome_of(order, outcome, said))

        call = Call(
            incarnation=order.incarnation,
            address=order.address,
            port=order.port,
            question=ProbeRequest(
                run_id=self._run_id, incarnation=order.incarnation, ended=order.ended
            ),
            within_s=order.answer_within_s,
            credentials=self._credentials,
        )
        ask_agent(self._loop, call, tell)

    def ask_vote(self, order: v.AskVote) -> None:
        """Ask for a vote."""

        def tell(answer: Answer | None, outcome: v.Outcome) -> None:
            self._tell_member(
                v.VoteAnswered(
                    incarnation=order.incarnation,
                    request=order.request,
                    answer=answer if isinstance(answer, VoteAnswer) else None,
                    outcome=outcome,
                )
            )

        call = Call(
            incarnation=order.incarnation,
            address=order.address,
            port=order.port,
            question=order.request,
            within_s=order.answer_within_s,
            credentials=self._credentials,
        )
        ask_agent(self._loop, call, tell)

    def ask_place(
        self, peers: Sequence[RosterEntry], within_s: float, ending: JobEnding | None
    ) -> None:
        """Ask all of them who decides; only an answer that says something is passed on."""

        def tell(answer: Answer | None, _: v.Outcome) -> None:
            if isinstance(answer, PlaceAnswer) and answer.ended is not None:
                self._tell_member(v.EndHeard(ending=answer.ended))
            elif isinstance(answer, PlaceAnswer) and answer.place is not None:
                self._tell_member(v.Announced(place=answer.place))
            elif isinstance(answer, PlaceAnswer) and answer.ending is not None:
                self._tell_member(v.EndHeard(ending=answer.ending, holds=False))

        for entry in peers:
            call = Call(
                incarnation=entry.incarnation,
                address=entry.address,
                port=entry.port,
                question=PlaceRequest(run_id=self._run_id, ending=ending),
                within_s=within_s,
                credentials=self._credentials,
            )
            ask_agent(self._loop, call, tell)

    def ask_whether_decides(
        self, place: Place, within_s: float, tell: Callable[[v.JobFound | None], None]
    ) -> None:
        """Dial a place, and tell whether the agent there says that it decides."""

        def on_answer(answer: Answer | None, _: v.Outcome) -> None:
            said = answer.place if isinstance(answer, PlaceAnswer) else None
            is_it = said is not None and said.incarnation == place.incarnation
            tell(v.JobFound(place=said) if is_it and said is not None else None)

        call = Call(
            incarnation=place.incarnation,
            address=place.address,
            port=place.port,
            question=PlaceRequest(run_id=self._run_id),
            within_s=within_s,
            credentials=self._credentials,
        )
        ask_agent(self._loop, call, on_answer)
