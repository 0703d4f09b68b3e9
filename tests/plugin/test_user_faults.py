"""Faults of a user's own: registered by a conftest.py, used in scenario files and in tests."""

from __future__ import annotations

from tests.plugin.place import Place

# What docs/faults.md shows, with a proof: the worker writes down that it was nudged.
CONFTEST = '''
    import signal
    from pathlib import Path
    from elastic_harness.faults.context import IN_FORCE, FaultImpossible, Until
    from elastic_harness.faults.workers.worker import WorkerFault

    class Nudge(WorkerFault):
        """A worker gets SIGUSR1. Stands for a nudge. Does not stand for: a push."""

        name = "nudge"
        proof = "the worker wrote its mark"

        mark: str

        def inject(self, context, targets, *, id):
            for worker in targets.workers:
                if not (yield from context.cluster.signal(worker.process, signal.SIGUSR1)):
                    raise FaultImpossible(f"{worker} has ended")
            yield IN_FORCE
            yield Until(
                condition=Path(self.mark).exists, within_s=20, otherwise="nobody was nudged"
            )
            return f"{self.mark} is there"

    def pytest_elastic_register_faults(registry):
        registry.add(Nudge)
'''

SCRIPT = """
    import os, signal, sys, time
    nudged = []
    signal.signal(signal.SIGUSR1, lambda *_: nudged.append(open(sys.argv[1], "w").close()))
    print("lying in wait", flush=True)
    while not nudged:
        time.sleep(0.01)
"""

SCENARIO = """
    version: 1
    id: nudged
    title: A worker is nudged
    job: {script: nudged.py, args: [MARK]}
    nodes: 1
    timeline:
      - when: {log: lying in wait}
        nudge: {worker: rank 0, mark: MARK}
    expect: {finally: [{job: succeeded}]}
"""

TEST = """
    def test_nudged(elastic_job, elastic_chaos, tmp_path):
        mark = str(tmp_path / "mark")
        job = elastic_job("nudged.py", mark, nodes=1)
        elastic_chaos.when(log="lying in wait").nudge(worker="rank 0", mark=mark)
        assert job.wait().succeeded
"""


def test_a_users_fault_is_one_like_ours_in_files_and_in_tests(place: Place) -> None:
    """It is injected, proven and recorded."""
    place.add("conftest.py", CONFTEST)
    place.add("nudged.py", SCRIPT)
    place.add("nudged.elastic.yaml", SCENARIO.replace("MARK", str(place.folder / "mark")))
    place.add("test_nudged.py", TEST)
    called = place.pytest("-rA", "nudged.elastic.yaml", "test_nudged.py")
    assert called.outcomes == {"nudged": "PASSED", "test_nudged": "PASSED"}, called.out


def test_mistakes_are_shown_when_scenarios_are_collected(place: Place) -> None:
    """A word that was misspelt, a parameter that is missing, a class that is no fault."""
    place.add("nudged.py", SCRIPT)
    place.add("sub/conftest.py", CONFTEST)
    place.add("sub/nudged.elastic.yaml", SCENARIO.replace("nudge:", "nuge:"))
    place.add("sub/marked.elastic.yaml", SCENARIO.replace(", mark: MARK", ""))
    called = place.pytest("sub", "--collect-only")
    assert "nuge" in called.out
    assert "did you mean 'nudge'?" in called.out
    assert "`mark` is missing here" in called.out
    place.add("sub/conftest.py", CONFTEST.replace('name = "nudge"', 'name = "kill"'))
    called = place.pytest("sub", "--collect-only")
    assert "a fault is called 'kill' already: choose another name" in called.out
    assert "Traceback" not in called.out
