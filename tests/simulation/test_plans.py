"""Plans that Hypothesis draws, and shrinks by itself."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
from elastic_simulation.random_faults.campaign import Finding, finding_of, shrink
from elastic_simulation.random_faults.plan import KINDS, InjectedFault, Plan, draw_plan

from pytest_elastic.rendezvous.settings import Settings
from tests.simulation.planted import PLANTED

BLOWS = st.lists(
    st.builds(
        InjectedFault,
        after_s=st.floats(0.0, 1.5),
        kind=st.sampled_from(KINDS),
        who=st.integers(0, 63),
        how=st.floats(0.0, 1.0, exclude_max=True),
    ),
    max_size=12,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan: simple ones first, so that shrinking goes there."""
    nodes = draw(st.integers(2, 5))
    minimum = draw(st.integers(1, nodes))
    return Plan(
        seed=draw(st.integers(0, 9)),
        settings=Settings(
            run_id="job",
            min_nodes=minimum,
            max_nodes=draw(st.integers(minimum, nodes + 2)),
            max_restarts=draw(st.integers(0, 4)),
            beat_interval_s=0.5,
            lease_s=1.5,
            drift_s=0.4,
            last_call_s=0.2,
            join_timeout_s=60.0,
            shutdown_timeout_s=1.0,
            min_round_s=draw(st.sampled_from([0.2, 1.0])),
            newcomer_window_s=0.2,
        ),
        latency_s=0.001,
        jitter_s=draw(st.sampled_from([0.0, 0.02])),
        arrivals_s=tuple(draw(st.floats(0.0, 0.5)) for _ in range(nodes)),
        clock_rates=tuple(draw(st.floats(0.93, 1.07)) for _ in range(nodes)),
        quiet_before_s=draw(st.sampled_from([1.0, 0.0])),
        damage=draw(st.sampled_from(["", "apart"])),
        faults=tuple(draw(BLOWS)),
    )


@hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(plan=plans())
def test_no_plan_breaks_a_promise(plan: Plan) -> None:
    """Whatever Hypothesis thinks of."""
    result = finding_of(plan)
    assert not isinstance(result, Finding), result.message


def test_our_own_shrinking_keeps_what_is_broken() -> None:
    """A run from a seed, left with what it needs."""

    def is_broken(plan: Plan) -> bool:
        return isinstance(finding_of(plan), Finding)

    with PLANTED["number-reused"].planted():
        plan = draw_plan(12)
        smaller = shrink(plan, is_broken)
        assert is_broken(smaller)
    assert 1 <= len(smaller.faults) <= 3 < len(plan.faults)
    assert sum(b.after_s for b in smaller.faults) <= sum(b.after_s for b in plan.faults)
