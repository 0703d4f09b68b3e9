"""The registry of `c10d` and `static`: a record in the store of each endpoint, one or several.

The node that owns the address of an endpoint hosts its store, and may found the job: alone if there
is one endpoint, elected by the hosts if there are several (R12, `announcer`). The leader writes
down where it is at every endpoint that it reaches. The job is found through any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_elastic.config import Endpoint
from pytest_elastic.credentials import Credentials
from pytest_elastic.events.model import EndpointsReached, Event
from pytest_elastic.file_work import FileWork
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Mark, founding_record
from pytest_elastic.rendezvous.driver.questions import Questions
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.ports import STORE_S
from pytest_elastic.rendezvous.registries.announcer import Announcer, Hosts
from pytest_elastic.rendezvous.registries.mark_file import MarkFile
from pytest_elastic.rendezvous.registries.registry import NodeSide, key_of, read_text, why_unread
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import Bootstrap, LeaderFound, WriteRecord

__all__ = ["EndpointRegistry"]

# Whose store it is, for nodes of another run that come by.
_OWNER_KEY = "pytest-elastic/run"
# How long a host that has just started waits for the mark: most files are on a disk that works.
_READ_S = 1.0
# How long after the first address that was found others are waited for: endpoints answer together.
_CHOOSE_S = 0.05
# How long a node looks before it says which endpoints it cannot reach: hosts may be starting.
_SAY_AFTER_S = 2.0


class EndpointRegistry:
    """One node's view of the endpoints' stores (see `registry.Registry`).

    `is_host`: this node hosts the endpoint (True), does not (False), or does if an endpoint is its
    own address and the port is free (None). `marks`: where the host of a single endpoint finds and
    leaves what it knows of the job (R12); None: nowhere.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        settings: Settings,
        endpoints: Sequence[Endpoint],
        is_host: bool | None,
        store: ports.EndpointStore,
        questions: Questions,
        on_event: Callable[[Event], None],
        credentials: Credentials | None = None,
        marks: MarkFile | None = None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._endpoints = endpoints
        self._is_single = len(endpoints) == 1
        self._is_alone = self._is_single and endpoints[0].port == 0
        self._is_forced = is_host is True and self._is_single
        self._store = store
        self._questions = questions
        self._on_event = on_event
        self._credentials = credentials
        is_marked = settings.has_succession and self._is_single and not self._is_alone
        self._marks = marks if is_marked else None
        self._files = FileWork(loop)
        self._unknown = [] if is_host is False else [*range(len(endpoints))]  # hosted here, or not
        self._hosted: int | None = None
        self._hosts: Hosts | None = None
        self._opened_at = 0.0
        self._announcers: Sequence[Announcer] = ()
        self._search: _Search | None = None
        self._mark_timer: Timer | None = None
        self._host_timer: Timer | None = None
        self._next_host_at = float("-inf")
        self._unread = ""  # why nothing could be taken from what stood there
        self._reached: tuple[str, ...] | None = None
        self._is_closed = False
        self._side: NodeSide

    def open(self, side: NodeSide) -> None:
        """Host an endpoint if one is here, and join."""
        self._side = side
        self._opened_at = self._loop.now()
        self._store.on_lost = self._on_store_lost
        if self._is_alone:
            # No other node could find a store on an unknown port: the job is this node alone.
            self._unknown.clear()
            self._bootstrap_alone("the job is this node alone", None)
        elif self._is_single:
            self._host(lambda _: None if self._hosted is not None else self._start())
        else:
            self._start()
            self._host(lambda _: None)

    def find(self, within_s: float) -> None:
        """Ask all endpoints at once; a job that runs comes first.

        A node that could not tell yet whether an endpoint is its own looks at that first.
        """
        asked_at = self._loop.now()
        self._host(lambda why: self._look_up(within_s - (self._loop.now() - asked_at), why))

    def announce(self, known: Sequence[Node]) -> None:
        """Tell the members, and all nodes that look at an endpoint from now on."""
        self.end()
        leader = self._side.leader
        assert leader is not None, "a leader began here"
        for entry in known:
            self._questions.announce(leader, entry)
        if self._is_alone:
            return
        self._announcers = [
            Announcer(
                self._loop,
                self._settings,
                endpoint,
                self._store,
                self._side,
                questions=self._questions,
                credentials=self._credentials,
            )
            for endpoint in self._endpoints
        ]
        for announcer in self._announcers:
            announcer.watch()

    def remember(self) -> None:
        """Leave a mark of the job, if this node hosts the endpoint."""
        job = self._side.known_job
        if self._marks is not None and self._hosted is not None and job is not None:
            self._marks.write(job)

    def write(self, written: WriteRecord) -> None:
        """Never asked: members decide."""
        raise AssertionError(f"record {written.record.number} was to be written at an endpoint")

    def end(self) -> None:
        """Announce nothing any more."""
        for announcer in self._announcers:
            announcer.stop()
        self._announcers = ()

    def close(self, on_closed: Callable[[], None]) -> None:
        """Look and announce no more; the store goes with its process."""
        self._is_closed = True
        self.end()
        self._end_search()
        self._files.close()
        if self._hosts is not None:
            self._hosts.close()
        for timer in (self._mark_timer, self._host_timer):
            if timer is not None:
                timer.cancel()
        if self._marks is not None and self._marks.is_ours and self._side.follower.has_ended:
            self._marks.remove()
        on_closed()

    def _start(self) -> None:
        self._side.tell_follower(v.Start())

    # --- hosting (R14): the first endpoint that is an address of this node, and free -------------

    def _host(self, go_on: Callable[[str], None]) -> None:
        """Host what is ours, and go on: with why it cannot be told yet, of a single endpoint."""
        numbers, self._unknown = self._unknown, []  # nothing else is begun while it is found out
        if self._is_closed or not self._side.follower.may_move:
            numbers = []
        self._host_first_of(numbers, "", go_on)

    def _host_first_of(
        self, numbers: Sequence[int], why: str, go_on: Callable[[str], None]
    ) -> None:
        if not numbers:
            go_on(why)
            return
        number, *others = numbers
        endpoint = self._endpoints[number]

        def on_done(why_not: str, may_change: str) -> None:
            if may_change:
                self._unknown.append(number)
            if why_not and self._is_forced:
                reason = f"cannot host the rendezvous at {endpoint}: {why_not}"
                self._side.notify(ports.JobOver(result="refused", reason=reason))
            elif why_not or may_change:
                self._host_first_of(others, "" if why_not else may_change, go_on)
            else:
                self._unknown.clear()
                self._hosted = number
                self._side.look_at_place(self._begin)
                go_on("")

        self._store.host(endpoint, on_done, is_forced=self._is_forced)

    def _begin(self) -> None:
        """Begin as the host of an endpoint."""
        assert self._hosted is not None, "an endpoint is hosted here"
        if self._is_closed:
            return
        self._name_run()
        if not self._is_single:
            self._hosts = Hosts(
                self._loop,
                self._settings,
                self._endpoints,
                self._store,
                self._side,
                hosted=self._hosted,
                credentials=self._credentials,
            )
            self._hosts.open()
            return
        why = "is to be hosted by this node" if self._is_forced else "is an address of this node"
        reason = f"{self._endpoints[self._hosted]} {why}"
        if self._marks is None:
            self._bootstrap_alone(reason, None)
            return
        self._files.call(
            self._marks.read,
            lambda mark: self._bootstrap_alone(reason, mark),
            limit_s=_READ_S,
            otherwise=lambda: None,
        )
        self._renew_mark()

    def _name_run(self) -> None:
        """Say at the endpoint that is hosted here whose store it is."""
        assert self._hosted is not None, "an endpoint is hosted here"
        endpoint, run_id = self._endpoints[self._hosted], self._settings.run_id
        self._store.swap(endpoint, _OWNER_KEY, "", run_id, lambda _text, _error: None)

    def _on_store_lost(self) -> None:
        """Serve again what was hosted here: its store was lost with its process."""
        if self._hosted is not None and self._host_timer is None:
            self._host_again_at(max(self._loop.now(), self._next_host_at))

    def _host_again_at(self, at: float) -> None:
        if not self._is_closed:
            self._host_timer = self._loop.call_at(at, self._host_again)

    def _host_again(self) -> None:
        """Host the endpoint anew; tried once a beat. A leader elsewhere looks at it once a beat."""
        self._host_timer = None
        self._next_host_at = self._loop.now() + self._settings.beat_interval_s
        number = self._hosted
        assert number is not None, "an endpoint was hosted here"

        def on_done(why_not: str, may_change: str) -> None:
            if why_not or may_change:
                self._host_again_at(self._next_host_at)
                return
            self._name_run()
            if self._hosts is not None:
                self._hosts.publish()
            if self._announcers:
                self._announcers[number].watch()

        self._store.host(self._endpoints[number], on_done, is_forced=self._is_forced)

    def _bootstrap_alone(self, reason: str, mark: Mark | None) -> None:
        base = founding_record((self._side.node,))
        self._side.bootstrap(Bootstrap(base=base, mark=mark), reason)
        if self._side.follower.connection is ConnectionPhase.UNSTARTED:
            self._start()

    def _renew_mark(self) -> None:
        """Renew the mark once a beat, as long as this node is in contact with its leader."""
        if self._side.follower.connection is ConnectionPhase.JOINED:
            self.remember()
        at = self._loop.now() + self._settings.beat_interval_s
        self._mark_timer = self._loop.call_at(at, self._renew_mark)

    # --- finding ---------------------------------------------------------------------------------

    def _look_up(self, within_s: float, why_unknown: str) -> None:
        if why_unknown and self._is_single:
            self._side.tell_follower(v.LeaderNotFound(reason=why_unknown))
            return
        self._end_search()
        search = self._search = _Search(self._loop, len(self._endpoints), self._on_searched)
        # The stores of several are asked again soon, those too that were not up.
        fetch_s = within_s if self._is_single else min(within_s, STORE_S)
        for number in range(len(self._endpoints)):
            self._ask(number, fetch_s, search)

    def _ask(self, number: int, within_s: float, search: _Search) -> None:
        """Ask for which run the store is served, and then for the leader."""
        endpoint, asked_at = self._endpoints[number], self._loop.now()

        def on_owner(owner: str, error: str) -> None:
            if error or owner not in {"", self._settings.run_id}:
                search.take(number, None, error or self._why_other(endpoint, owner))
                return
            left_s = within_s - (self._loop.now() - asked_at)
            key = key_of(self._settings)
            self._store.fetch(endpoint, key, on_leader, timeout_s=max(left_s, STORE_S))

        def on_leader(text: str, error: str) -> None:
            if error:
                search.take(number, None, error)
                return
            leader = read_text(LeaderAddress, text, self._settings.run_id, self._credentials)
            where = f"at {endpoint}" if self._is_single else "there"
            why = "" if leader is not None else why_unread(text, where, self._credentials)
            search.take(number, leader, why)

        self._store.swap(endpoint, _OWNER_KEY, "", None, on_owner, timeout_s=within_s)

    def _why_other(self, endpoint: Endpoint, owner: str) -> str:
        return (
            f"the store at {endpoint} is that of run {owner!r}, and this node was "
            f"started for run {self._settings.run_id!r}: give all nodes of a job the same "
            "--rdzv-id, and each job an endpoint of its own"
        )

    def _on_searched(self, leader: LeaderAddress | None, problems: dict[int, str]) -> None:
        self._end_search()
        if leader is not None:
            found = LeaderFound(leader=leader)
            if self._hosted is None:
                self._side.look_at_place(lambda: self._side.tell_follower(found))
            else:  # what this node has published says where it is
                self._side.tell_follower(found)
        elif self._is_single:
            self._side.tell_follower(v.LeaderNotFound(reason=self._why_not_found(problems[0])))
        else:
            self._tell_none_found(problems)

    def _why_not_found(self, problem: str) -> str:
        """Return why a single endpoint names no leader, with what stood there before."""
        if problem.startswith(("what stands ", "the record of ")):
            self._unread = problem
        elif self._unread:  # its writer may have gone, and it is the likely reason
            return f"{problem}; before that, {self._unread}"
        return problem

    def _tell_none_found(self, problems: dict[int, str]) -> None:
        unbegun = "no node has begun the job there"
        problems = {
            number: unbegun if "has no key" in why else why
            for number, why in sorted(problems.items())
        }
        said = "; ".join(f"{self._endpoints[number]}: {why}" for number, why in problems.items())
        self._side.tell_follower(v.LeaderNotFound(reason=said))
        missing = {
            str(self._endpoints[number]): why for number, why in problems.items() if why != unbegun
        }
        reached = tuple(str(each) for each in self._endpoints if str(each) not in missing)
        is_early = self._loop.now() < self._opened_at + _SAY_AFTER_S
        if reached != self._reached and not is_early:
            self._reached = reached
            self._on_event(EndpointsReached(reached=reached, missing=missing))

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.end()
            self._search = None


class _Search:
    """One question to all endpoints; tells the best answer once, or why there is none."""

    def __init__(
        self,
        loop: Loop,
        count: int,
        tell: Callable[[LeaderAddress | None, dict[int, str]], None],
    ) -> None:
        self._loop = loop
        self._count = count
        self._tell = tell
        self._found: list[LeaderAddress] = []
        self._problems: dict[int, str] = {}
        self._timer: Timer | None = None
        self._is_over = False

    def take(self, number: int, leader: LeaderAddress | None, error: str) -> None:
        """Take one endpoint's answer."""
        if self._is_over:
            return
        if leader is None:
            self._problems[number] = error
        else:
            self._found.append(leader)
        is_complete = len(self._found) + len(self._problems) == self._count
        if is_complete or (leader is not None and not leader.is_founding):
            self._finish()
        elif leader is not None and self._timer is None:
            self._timer = self._loop.call_at(self._loop.now() + _CHOOSE_S, self._finish)

    def end(self) -> None:
        """Tell nothing any more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self) -> None:
        best: LeaderAddress | None = None
        for each in self._found:
            best = each if best is None or each.goes_before(best) else best
        problems = self._problems
        self.end()
        self._tell(best, problems)
