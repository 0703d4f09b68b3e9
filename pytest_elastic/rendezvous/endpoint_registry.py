"""The registry of `c10d` and `static`: a record in the store that one node hosts at the endpoint.

Who hosts the store is the job's first coordinator (R14). Whoever follows was elected (R11), tells
the members, and looks after the record at the endpoint if somebody serves it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_elastic.config import Endpoint
from pytest_elastic.credentials import Credentials
from pytest_elastic.file_work import FileWork
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.announcer import Announcer, found_at, key_of, place_of, read_place
from pytest_elastic.rendezvous.mark import Mark
from pytest_elastic.rendezvous.mark_file import MarkFile
from pytest_elastic.rendezvous.member_phases import Link
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import RosterEntry, Settings
from pytest_elastic.rendezvous.records import why_unread
from pytest_elastic.rendezvous.registry import NodeSide

__all__ = ["EndpointRegistry"]

_FIRST_TERM = 1  # succession raises it
# Whose store it is, for nodes of another run that come by.
_OWNER_KEY = "pytest-elastic/run"
_OWNER_S = 1.0
# How long a host that has just started waits for the mark: most files are on a disk that works.
_READ_S = 1.0


class EndpointRegistry:
    """One node's view of the endpoint's store (see `registry.Registry`).

    `is_host`: this node hosts it (True), does not (False), or does if the endpoint is its own
    address and the port is free (None). `marks`: where a host finds and leaves what it knows of the
    job (R12); None: nowhere.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        settings: Settings,
        endpoint: Endpoint,
        is_host: bool | None,
        store: ports.EndpointStore,
        credentials: Credentials | None = None,
        marks: MarkFile | None = None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._endpoint = endpoint
        self._is_host = is_host
        self._store = store
        self._credentials = credentials
        self._announcer: Announcer | None = None
        self._marks = marks if settings.has_succession and endpoint.port != 0 else None
        self._files = FileWork(loop)
        self._hosts = False
        self._may_host = is_host is not False  # and that is not known yet
        self._timer: Timer | None = None
        self._unread = ""  # why nothing could be taken from what stood there
        self._side: NodeSide

    def open(self, side: NodeSide) -> None:
        """Host the store if this is the place, and decide; then join."""
        self._side = side
        if self._endpoint.port == 0:
            # Nobody could find a store on a port that nobody knows: the job is this node alone.
            self._begin("the job is this node alone")
            return
        if self._may_host:
            self._host(self._start)
        else:
            self._start("")

    def find(self, within_s: float) -> None:
        """Read what is published, or hear at once that the store is that of another run.

        A node that could not tell yet whether the endpoint is its own looks at that first.
        """
        if not self._may_host:
            self._look_up(within_s)
            return
        asked_at = self._loop.now()

        def go_on(why_unknown: str) -> None:
            if why_unknown:
                self._side.tell_member(v.CoordinatorNotFound(reason=why_unknown))
            else:
                self._look_up(within_s - (self._loop.now() - asked_at))

        self._host(go_on)

    def _look_up(self, within_s: float) -> None:
        asked_at = self._loop.now()

        def fetch(owner: str, error: str) -> None:
            if error or owner not in {"", self._settings.run_id}:
                self._on_read("", error or self._why_other(owner))
                return
            left_s = within_s - (self._loop.now() - asked_at)
            self._store.fetch(
                self._endpoint.host,
                self._endpoint.port,
                key_of(self._settings),
                timeout_s=max(left_s, _OWNER_S),
                on_done=self._on_read,
            )

        self._ask_whose_it_is(None, fetch, within_s=within_s)

    def announce(self, place: Place, members: Sequence[RosterEntry]) -> None:
        """Tell the members, and whoever looks at the endpoint from now on."""
        announcer = self._announce_from_here(place)
        announcer.tell(members)
        if self._endpoint.port != 0:
            announcer.watch_endpoint()

    def remember(self) -> None:
        """Leave a mark of the job, if this node hosts the endpoint."""
        job = self._side.member.known_job
        if self._marks is not None and self._hosts and job is not None:
            self._marks.write(job)

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        """Have it performed at once: members are what a round is written down in."""
        self._side.perform(command)

    def end(self) -> None:
        """Announce nothing any more."""
        if self._announcer is not None:
            self._announcer.stop()

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        """Announce nothing any more; the store goes with its process."""
        self.end()
        self._files.close()
        self._leave_mark()
        on_closed()

    # Who hosts (R14)

    def _host(self, go_on: Callable[[str], None]) -> None:
        """Host the store, or `go_on`: with why it cannot be told yet whether it is hosted here."""
        self._may_host = False  # while it is found out, nothing else is begun
        self._store.host(
            self._endpoint.host,
            self._endpoint.port,
            is_forced=self._is_host is True,
            on_done=lambda why_not, why_unknown: self._on_hosted(why_not, why_unknown, go_on),
        )

    def _on_hosted(self, why_not: str, why_unknown: str, go_on: Callable[[str], None]) -> None:
        self._may_host = bool(why_unknown)
        if why_unknown:
            go_on(why_unknown)
        elif not why_not:
            is_told = self._is_host is True
            why = "is to be hosted by this node" if is_told else "is an address of this node"
            self._side.look_at_place(lambda: self._begin(f"{self._endpoint} {why}"))
        elif self._is_host is True:
            self._side.notify(
                ports.JobOver(
                    result="refused",
                    reason=f"cannot host the rendezvous at {self._endpoint}: {why_not}",
                )
            )
        else:
            go_on("")

    def _start(self, _why_unknown: str) -> None:
        self._side.tell_member(v.Start())

    def _begin(self, reason: str) -> None:
        if self._marks is None:
            self._coordinate(reason, None)
            return
        self._files.call(
            self._marks.read,
            lambda mark: self._coordinate(reason, mark),
            limit_s=_READ_S,
            otherwise=lambda: None,
        )

    def _coordinate(self, reason: str, mark: Mark | None) -> None:
        self._hosts = True
        self._side.coordinate(_FIRST_TERM, reason, mark=mark)
        if self._marks is not None:
            self._renew_mark()
        announcer = self._announce_from_here(place_of(self._side.node, _FIRST_TERM))
        if self._endpoint.port != 0:
            announcer.publish(self._on_published)
            if self._settings.has_succession:
                announcer.watch_endpoint()
            self._ask_whose_it_is(self._settings.run_id, lambda _owner, _error: None)
        if self._side.member.link is Link.UNSTARTED:
            self._side.tell_member(v.Start())
        else:
            place = place_of(self._side.node, _FIRST_TERM)
            self._side.tell_member(found_at(place, is_here=True))

    def _on_newer(self, place: Place, otherwise: Callable[[], None]) -> None:
        """Hear of a coordinator that could publish itself, and could not reach this node."""
        self._side.hear_of(place, otherwise=otherwise)

    def _announce_from_here(self, place: Place) -> Announcer:
        self._announcer = Announcer(
            self._loop,
            self._settings,
            self._endpoint,
            self._store,
            place,
            credentials=self._credentials,
            on_newer=self._on_newer,
        )
        return self._announcer

    def _on_published(self, error: str) -> None:
        if error:
            self._side.notify(
                ports.JobOver(
                    result="lost",
                    reason=f"cannot publish the coordinator at {self._endpoint}: {error}",
                )
            )

    # What is left for whoever hosts next (R12)

    def _renew_mark(self) -> None:
        """Renew the mark once a beat, as long as this node is in contact with its coordinator."""
        if self._side.member.link is Link.JOINED:
            self.remember()
        at = self._loop.now() + self._settings.beat_interval_s
        self._timer = self._loop.call_at(at, self._renew_mark)

    def _leave_mark(self) -> None:
        """Take the mark away if the job has ended, and see that it tells of a node that leaves."""
        if self._timer is not None:
            self._timer.cancel()
        if self._marks is None or not self._marks.is_ours:
            return
        member = self._side.member
        if member.has_ended:
            self._marks.remove()
        elif (job := member.known_job) is not None and job.left:
            self.remember()

    # Finding it

    def _ask_whose_it_is(
        self, run_id: str | None, on_done: Callable[[str, str], None], *, within_s: float = _OWNER_S
    ) -> None:
        """Ask for which run the store is served; with a run id, say so if nobody has."""
        self._store.swap(
            self._endpoint.host,
            self._endpoint.port,
            _OWNER_KEY,
            expected="",
            value=run_id,
            timeout_s=within_s,
            on_done=on_done,
        )

    def _why_other(self, owner: str) -> str:
        return (
            f"the store at {self._endpoint} is that of run {owner!r}, and this node was "
            f"started for run {self._settings.run_id!r}: give all nodes of a job the same "
            "--rdzv-id, and each job an endpoint of its own"
        )

    def _on_read(self, value: str, error: str) -> None:
        place = None if error else read_place(value, self._settings.run_id, self._credentials)
        if place is None:
            reason = error
            if not error:
                reason = why_unread(value, f"at {self._endpoint}", self._credentials)
                self._unread = reason
            elif self._unread:  # whoever wrote that may have gone, and it is the likely reason
                reason += f"; before that, {self._unread}"
            self._side.tell_member(v.CoordinatorNotFound(reason=reason))
            return
        found = found_at(place, is_here=False)
        self._side.look_at_place(lambda: self._side.tell_member(found))
