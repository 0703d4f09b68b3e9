"""What a node's part in a job came to, gathered from the facts that its agent states."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.model import Failure
from pytest_elastic.rendezvous.ports import JobOver
from pytest_elastic.wire import Value

__all__ = ["EXIT_CODES", "RESULTS", "Outcome"]

# Of an agent, by what `ports.JobOver` says; one that left has ended as by a signal.
EXIT_CODES = {"succeeded": 0, "failed": 1, "refused": 2, "lost": 3}
RESULTS = {code: result for result, code in EXIT_CODES.items()}


class Outcome(Value):
    """How it ended here: `result` as in `ports.JobOver`, and why.

    `ranks` are those workers of this node that ended well in the last round that it took part in,
    which is `round` (0: in none).
    """

    result: str = ""
    reason: str = ""
    exit_code: int = 0
    first_failure: Failure | None = None
    round: int = 0
    ranks: Sequence[int] = ()

    def after(self, event: events.Event) -> Outcome:
        """Return the outcome with one more fact."""
        match event:
            case events.RoundCommitted():
                return replace(self, round=event.round, ranks=())
            case events.WorkerExited(cause="exited", round=self.round):
                return replace(self, ranks=(*self.ranks, event.rank))
            case events.AgentExited(exit_code=code):
                # Without a last word of the rendezvous, the code is what there is.
                result = self.result or RESULTS.get(code, "drained")
                reason = self.reason or event.reason
                return replace(self, result=result, exit_code=code, reason=reason)
            case _:
                return self

    def over(self, over: JobOver) -> Outcome:
        """Return the outcome with the last word of the rendezvous."""
        return replace(
            self, result=over.result, reason=over.reason, first_failure=over.first_failure
        )
