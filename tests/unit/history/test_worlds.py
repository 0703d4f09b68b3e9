from __future__ import annotations

from elastic_harness.history.worlds import World, Worlds

from tests.unit.history.story import Story


def worlds_of(story: Story) -> list[World]:
    """Return the worlds of a story."""
    worlds = Worlds()
    for record in story.records:
        worlds.observe(record)
    return worlds.rounds


def members(world: World) -> list[tuple[int, str]]:
    """Return a world's ranks and their nodes."""
    return [(rank, worker.node) for rank, worker in sorted(world.workers.items())]


def unnamed(port: int, **more: object) -> dict[str, object]:
    """What torchrun tells: no round, a restart count for each node, an address."""
    return {"round": None, "master_port": port, "restart_count": 0, **more}


def test_a_world_forms_when_every_rank_has_said_hello() -> None:
    """The time is that of the last hello; before that there is none."""
    story = Story().hello(1, "n1", 0, 2)
    assert worlds_of(story)[0].formed_at is None
    last_hello = story.wait(1.0).at
    story.hello(1, "n2", 1, 2)
    assert worlds_of(story)[0].formed_at == last_hello


def test_a_world_progresses_when_every_rank_has_completed_a_step() -> None:
    """One rank's step is not enough; the slowest rank's first step dates it."""
    story = Story().round(1, ["n1", "n2"]).step(1, 0, 1).step(1, 0, 2)
    assert worlds_of(story)[0].progressed_at is None
    story.step(1, 1, 1)
    (world,) = worlds_of(story)
    assert world.progressed_at == story.records[-1].at
    assert (world.first_step, world.last_step, world.steps_done) == (1, 2, 1)


def test_rounds_that_a_launcher_names_are_kept_apart_by_number() -> None:
    """Hellos of two rounds may interleave; ordinals count from 1 in order of appearance."""
    story = Story().hello(4, "n1", 0, 2).hello(5, "n2", 1, 2).hello(4, "n2", 1, 2)
    story.hello(5, "n1", 0, 2)
    first, second = worlds_of(story)
    assert (first.ordinal, first.round, members(first)) == (1, 4, [(0, "n1"), (1, "n2")])
    assert (second.ordinal, second.round, len(second.workers)) == (2, 5, 2)


def test_two_coordinators_with_one_round_number_make_two_worlds() -> None:
    """Where a rank of a round is taken, the workers sort themselves by their store."""
    story = Story()
    story.hello(2, "n1", 0, 2, master_addr="10.77.0.1").hello(
        2, "n3", 0, 2, master_addr="10.77.0.3"
    )
    story.hello(2, "n4", 1, 2, master_addr="10.77.0.3").hello(
        2, "n2", 1, 2, master_addr="10.77.0.1"
    )
    first, second = worlds_of(story)
    assert members(first) == [(0, "n1"), (1, "n2")]
    assert members(second) == [(0, "n3"), (1, "n4")]


def test_without_a_round_number_a_fresh_store_is_a_new_world() -> None:
    """Torchrun with a store for each round tells worlds apart by the master port."""
    story = Story().round(1, ["n1", "n2"], **unnamed(5000)).gone(1)
    story.round(2, ["n1", "n2"], **unnamed(5001))
    assert [members(world) for world in worlds_of(story)] == [[(0, "n1"), (1, "n2")]] * 2


def test_without_a_round_number_and_with_one_store_a_taken_rank_is_a_new_world() -> None:
    """Torchrun as shipped keeps one store; the node that restarts first opens the new world."""
    story = Story(nproc=2).round(1, ["n1", "n2"], **unnamed(5000))
    story.gone(1, 2, 3)
    for rank in (2, 3):
        story.hello(2, "n2", rank, 4, **unnamed(5000, restart_count=1))
    story.gone(1, 0, 1)
    for rank in (0, 1):
        story.hello(2, "n1", rank, 4, **unnamed(5000, restart_count=1))
    first, second = worlds_of(story)
    assert [node for _, node in members(first)] == ["n1", "n1", "n2", "n2"]
    assert second.formed_at is not None
    assert len(second.workers) == 4


def test_a_world_whose_workers_are_all_gone_takes_no_more() -> None:
    """A start that failed is not joined by the next one."""
    story = Story().hello(1, "n1", 0, 2, **unnamed(5000)).gone(1)
    story.hello(2, "n2", 1, 2, **unnamed(5000)).hello(2, "n1", 0, 2, **unnamed(5000))
    first, second = worlds_of(story)
    assert members(first) == [(0, "n1")]
    assert members(second) == [(0, "n1"), (1, "n2")]


def test_the_nonce_corrects_a_wrong_guess() -> None:
    """A worker that turns out to be in another group is moved to where its group is."""
    story = Story(nproc=1)
    story.hello(1, "n1", 0, 2, **unnamed(5000)).hello(1, "n2", 1, 2, **unnamed(5000))
    story.group(1, "a")
    # The new rank 1 fits nowhere else than with a rank 0 that is really a third world's.
    story.hello(2, "n2", 1, 2, **unnamed(5000)).hello(3, "n1", 0, 2, **unnamed(5000))
    assert [len(world.workers) for world in worlds_of(story)] == [2, 2]
    story.group(2, "b").group(3, "c")
    assert [members(world) for world in worlds_of(story)] == [
        [(0, "n1"), (1, "n2")],
        [(1, "n2")],
        [(0, "n1")],
    ]


def test_one_group_with_two_names_for_its_master_is_one_world() -> None:
    """Hellos that disagree about the address are brought together by the nonce, without a ghost."""
    story = Story().hello(1, "n1", 0, 2, **unnamed(5000, master_addr="n1"))
    story.hello(1, "n2", 1, 2, **unnamed(5000, master_addr="10.77.0.1"))
    assert len(worlds_of(story)) == 2
    (world,) = worlds_of(story.group(1, "a"))
    assert world.ordinal == 1
    assert members(world) == [(0, "n1"), (1, "n2")]
    assert world.formed_at is not None


def test_an_old_nonce_in_a_store_that_is_kept_does_not_put_two_workers_in_one_place() -> None:
    """Torch #135712: keys of the round before can still be read."""
    story = Story().round(1, ["n1", "n2"], **unnamed(5000)).group(1, "a").gone(1)
    story.round(2, ["n1", "n2"], **unnamed(5000)).group(2, "a")
    assert [len(world.workers) for world in worlds_of(story)] == [2, 2]


def test_two_jobs_on_one_cluster_are_different_worlds() -> None:
    """The run id keeps them apart, whatever else is equal (torch #126510)."""
    story = Story().hello(1, "n1", 0, 1, run_id="a").hello(1, "n1", 0, 1, run_id="b")
    assert [world.run_id for world in worlds_of(story)] == ["a", "b"]


def test_a_worker_remembers_what_it_did_and_how_it_went() -> None:
    """First and last step, resume, digest, end."""
    story = Story().round(1, ["n1"]).steps(1, 21, 23).hashed(1, 0, "x").finish(1)
    worker = worlds_of(story)[0].workers[0]
    assert (worker.first_step, worker.last_step, worker.resumed_at_step) == (21, 23, 20)
    assert worker.digest is not None
    assert worker.finished
    assert not worker.is_alive
    assert worlds_of(story)[0].ended_at == worker.gone_at


def test_a_step_that_the_script_names_later_replaces_the_guess() -> None:
    """The same count twice is the same step, better known."""
    story = Story().round(1, ["n1"]).step(1, 0, None, count=1)
    story.step(1, 0, 41, count=1, step_source="script").step(1, 0, 42, count=2)
    worker = worlds_of(story)[0].workers[0]
    assert [step.step for step in worker.steps] == [41, 42]


def test_the_seqs_of_views_are_those_of_the_history() -> None:
    """Checkers point at records with them."""
    history = Story().round(1, ["n1", "n2"]).steps(1, 1, 2).gone(1).history
    for worker in history.worlds.rounds[0].workers.values():
        assert history[worker.hello_seq].event is worker.hello
        assert history[worker.gone_seq or 0].event.kind == "worker_gone"
        assert [history[step.seq].at for step in worker.steps] == [s.at for s in worker.steps]
