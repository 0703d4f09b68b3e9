"""The example that everything else is shown with: it has to survive what we do to it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.train import Checkpoints, ElasticBatchSampler, Superseded, TextWindows, parse
from tests.integration.example_runs import Run, Runs, warm_agent
from tests.integration.small_agent import AgentProcess
from tests.integration.stopped import stop

SIXTY = ("--steps=60", "--samples=320")  # may be interrupted in mid-epoch, and across one


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Start what warm runs are forked from, once."""
    with warm_agent() as started:
        yield started


@pytest.fixture
def runs(tmp_path: Path, agent: AgentProcess) -> Iterator[Runs]:
    """Give a test its runs, and end those that it left behind."""
    started = Runs(directory=tmp_path / "checkpoints", agent=agent)
    yield started
    started.end()


def losses(run: Run) -> dict[int, float]:
    """Return what the run printed as its loss, by step."""
    found = re.findall(r"^step (\d+) loss (\S+) world_size \d+$", run.output, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def final_digest(run: Run) -> str:
    """Return the digest of the parameters that the run ended with."""
    match = re.search(r"^done: step \d+ loss \S+ parameters sha256:(\w{64})$", run.lines[-1])
    assert match, run.output
    return match[1]


def torchrun(nproc: int) -> list[str]:
    """Return the command that comes before the script."""
    run = (sys.executable, "-m", "torch.distributed.run")
    return [*run, "--standalone", f"--nproc-per-node={nproc}"]


# The sampler


@given(
    samples=st.integers(1, 60),
    rounds=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), min_size=1, max_size=6),
    global_batch=st.integers(1, 13),
)
def test_each_epoch_sees_each_sample_exactly_once_whatever_the_world_sizes(
    samples: int, rounds: list[tuple[int, int]], global_batch: int
) -> None:
    """Rounds of any number of ranks and steps in a row never repeat or skip a sample."""
    position: dict[str, int] | None = None
    seen: dict[int, list[int]] = {}
    for world_size, steps in [*rounds, (2, samples)]:  # the last round ends the epoch it is in
        ranks = [
            ElasticBatchSampler(samples, global_batch, rank=rank, world_size=world_size, seed=3)
            for rank in range(world_size)
        ]
        for sampler in ranks:
            if position:
                sampler.load_state_dict(position)
        epoch = ranks[0].epoch
        for shares in list(zip(*ranks, strict=True))[:steps]:
            seen.setdefault(epoch, []).extend(index for share in shares for index in share)
            consumed = {sampler.advance() for sampler in ranks}
            assert consumed == {sum(len(share) for share in shares)}
        position = ranks[0].state_dict()
    for indices in seen.values():
        assert sorted(indices) == list(range(samples))


def test_iterating_moves_nothing_because_loaders_fetch_ahead() -> None:
    """Only `advance` moves the position; reading the whole epoch leaves it where it was."""
    sampler = ElasticBatchSampler(10, 4)
    assert len(sampler) == 3
    assert len(list(sampler)) == 3
    assert (sampler.epoch, sampler.cursor) == (0, 0)
    sampler.advance()
    assert len(sampler) == 2


def test_shares_differ_by_at_most_one_sample_and_may_be_empty() -> None:
    """A remainder that does not divide is spread, and the ranks beyond it get empty batches."""
    ranks = [ElasticBatchSampler(10, 8, rank=rank, world_size=3) for rank in range(3)]
    assert [[len(batch) for batch in sampler] for sampler in ranks] == [[3, 1], [3, 1], [2, 0]]


def test_epochs_are_shuffled_differently_and_seeds_matter() -> None:
    """The permutation is a function of seed and epoch."""
    sampler = ElasticBatchSampler(32, 32)
    first = next(iter(sampler))
    sampler.advance()
    assert sampler.epoch == 1
    assert next(iter(sampler)) != first
    assert next(iter(ElasticBatchSampler(32, 32, seed=1))) != first
    assert next(iter(ElasticBatchSampler(32, 32))) == first


def test_resuming_with_another_number_of_samples_is_refused_with_both_numbers() -> None:
    """A cursor into one permutation means nothing in another."""
    state = ElasticBatchSampler(32, 8).state_dict()
    with pytest.raises(ValueError, match="32 samples to an epoch, this run 48"):
        ElasticBatchSampler(48, 8).load_state_dict(state)


def test_windows_overlap_by_the_character_they_predict() -> None:
    """The last character of a window is the first of the next, so every character is predicted."""
    data = TextWindows(3)
    assert len(data) == 3
    assert data[0][-1] == data[1][0]
    assert len(TextWindows(0)) > 10_000


# Checkpoints on disk


def state_of(step: int) -> dict[str, object]:
    """Return something worth saving."""
    return {"step": step, "weights": torch.arange(100)}


def test_a_torn_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digest in the name finds a file that lost its end; the previous one is whole."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(state_of(10))
    checkpoints.write(state_of(20))
    newest = max(tmp_path.glob("*.pt"))
    os.truncate(newest, newest.stat().st_size // 2)
    found = checkpoints.newest_valid()
    assert found
    assert found["step"] == 10
    assert f"checkpoint {newest.name} is torn" in capsys.readouterr().out


def test_two_checkpoints_are_kept_and_nothing_else(tmp_path: Path) -> None:
    """The newest and the one before; temporary files of earlier crashes go at the next start."""
    (tmp_path / "checkpoint-x.123.tmp").touch()
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 20, 30):
        checkpoints.write(state_of(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name[:27] for name in names] == [
        "checkpoint-000001-000000020",
        "checkpoint-000001-000000030",
        "generation-000001",
    ]


def test_a_forgotten_writer_of_an_older_generation_is_refused(tmp_path: Path) -> None:
    """A start claims the directory; an earlier job may not write there any more."""
    old = Checkpoints(tmp_path)
    old.write(state_of(50))
    new = Checkpoints(tmp_path)
    with pytest.raises(Superseded, match="generation 1 of the job, and generation 2 has started"):
        old.write(state_of(60))
    new.write(state_of(51))
    found = new.newest_valid()
    assert found
    assert found["step"] == 51


def test_a_newer_generation_wins_over_a_higher_step(tmp_path: Path) -> None:
    """What a fenced writer slipped in late is not what the job resumes from."""
    old = Checkpoints(tmp_path)
    late = tmp_path / "late"
    old.directory = late  # where it cannot see the claim, as on a lagging file system
    late.mkdir()
    old.write(state_of(60))
    new = Checkpoints(tmp_path)
    new.write(state_of(51))
    for path in late.glob("*.pt"):
        path.rename(tmp_path / path.name)
    found = new.newest_valid()
    assert found
    assert found["step"] == 51


def test_checkpoints_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """ELASTIC_CHECKPOINT_DIR is the default; the flag wins."""
    monkeypatch.setenv("ELASTIC_CHECKPOINT_DIR", "/from/environment")
    assert parse([]).checkpoint_dir == "/from/environment"
    assert parse(["--checkpoint-dir=/from/flag"]).checkpoint_dir == "/from/flag"
    monkeypatch.delenv("ELASTIC_CHECKPOINT_DIR")
    assert parse([]).checkpoint_dir == "checkpoints"


# Real runs


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run it once without interruption, as a person would, to be compared with."""
    runs = Runs(directory=tmp_path_factory.mktemp("whole"))
    try:
        return runs.finish_fresh(*SIXTY)
    finally:
        runs.end()


def test_one_process_trains(whole: Run) -> None:
    """Without a launcher it trains alone: the loss falls well below that of guessing."""
    by_step = losses(whole)
    assert list(by_step) == [10, 20, 30, 40, 50, 60]
    assert by_step[60] < by_step[10] - 1.0
    assert final_digest(whole)


@pytest.mark.slow
def test_interrupted_runs_end_with_the_bits_of_an_uninterrupted_one(runs: Runs, whole: Run) -> None:
    """Killed once and asked to leave once, in mid-epoch and across one: the bits are the same."""
    arguments = [*SIXTY, "--log-every=1", "--checkpoint-every=7"]
    killed = runs.start(*arguments, "--step-time=0.05")
    killed.wait_for_line("^step 10 ")
    killed.send(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    last = max(losses(killed))  # it may have taken more steps before the signal came

    asked = runs.start(*arguments, "--step-time=0.05")
    resumed_at = int(asked.wait_for_line(r"^resumed at step (\d+)")[1])
    # A step is said before its checkpoint is written: of the newest one either may be missing.
    assert resumed_at in {step // 7 * 7 for step in (last - 1, last)}, killed.output
    asked.wait_for_line(f"^step {resumed_at + 18} ")
    asked.send(signal.SIGTERM)
    assert asked.wait() == 143, asked.output
    left_at = max(losses(asked))
    assert f"leaving at step {left_at}: 1 of 1 ranks got SIGTERM" in asked.output

    resumed = runs.finish(*arguments)
    assert f"resumed at step {left_at}, world size 1" in resumed.output  # not one step lost
    assert final_digest(resumed) == final_digest(whole)


@pytest.mark.slow
def test_loader_processes_change_nothing(runs: Runs, whole: Run) -> None:
    """What was fetched ahead by loader processes and not trained on is fetched again."""
    arguments = [*SIXTY, "--log-every=1", "--num-workers=2"]
    asked = runs.start(*arguments, "--step-time=0.05")
    asked.wait_for_line("^step 15 ")
    asked.send(signal.SIGTERM)
    assert asked.wait() == 143, asked.output
    assert final_digest(runs.finish(*arguments)) == final_digest(whole)


def test_a_run_with_a_torn_checkpoint_goes_on_from_the_one_before(runs: Runs) -> None:
    """The next start says which file it did not trust and trains on from the previous one."""
    runs.finish("--steps=20", "--checkpoint-every=5")
    newest = max(runs.directory.glob("*.pt"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    again = runs.finish("--steps=20", "--checkpoint-every=5")
    assert f"checkpoint {newest.name} is torn" in again.output
    assert "resumed at step 15" in again.output


@pytest.mark.slow
def test_losses_are_the_same_across_a_change_of_world_size(runs: Runs, tmp_path: Path) -> None:
    """Two ranks under torchrun, then one alone, see the batches that one process would see."""
    arguments = ["--samples=500", "--global-batch=30", "--dropout=0", "--log-every=1"]
    whole = runs.finish(*arguments, "--steps=40", f"--checkpoint-dir={tmp_path / 'whole'}")
    two = runs.finish_fresh(*arguments, "--steps=20", launcher=torchrun(2))
    one = runs.finish(*arguments, "--steps=40")
    assert "starting at step 0, world size 2" in two.output
    assert "resumed at step 20, world size 1" in one.output
    assert losses(two) | losses(one) == pytest.approx(losses(whole), abs=2e-3)


def test_all_ranks_leave_at_the_same_step(runs: Runs) -> None:
    """One rank is asked to leave: all stop after the same step, its checkpoint is on disk."""
    # The other one's launcher, which is this test, may be late.
    code = "from examples import train; train.PEERS_LEFT_WAIT_S = 600; train.main()"
    one, other = runs.start_ranks(2, "--steps=1000", "--log-every=1", "--step-time=0.05", code=code)
    one.wait_for_line("^step 5 ")
    other.send(signal.SIGTERM)
    left_at = one.wait_for_line(r"^leaving at step (\d+): 1 of 2 ranks got SIGTERM")[1]
    assert other.wait() == 143, other.output
    one.send(signal.SIGTERM)  # what a launcher that re-forms the group does
    assert one.wait() == 143, one.output
    assert [path.name[18:27] for path in runs.directory.glob("*.pt")] == [left_at.zfill(9)]


def test_a_rank_whose_peers_left_fails_when_its_launcher_does_nothing(runs: Runs) -> None:
    """Under torchrun nobody stops the other nodes; failing is what makes them re-form."""
    code = "from examples import train; train.PEERS_LEFT_WAIT_S = 0.1; train.main()"
    one, other = runs.start_ranks(2, "--steps=1000", "--log-every=1", "--step-time=0.05", code=code)
    one.wait_for_line("^step 5 ")
    other.send(signal.SIGTERM)
    assert other.wait() == 143, other.output
    assert one.wait() == 1, one.output
    assert "1 of 2 ranks left after step" in one.output


def test_a_rank_with_dead_peers_leaves_without_waiting_for_them(runs: Runs) -> None:
    """A frozen peer never ends the step: SIGTERM is obeyed within seconds all the same."""
    one, other = runs.start_ranks(2, "--steps=1000", "--log-every=1", "--step-time=0.05")
    one.wait_for_line("^step 5 ")
    stop(other.pid)
    one.send(signal.SIGTERM)
    assert one.wait() == 143, one.output
    assert "the peers are gone; leaving without a checkpoint" in one.output


def test_a_rank_whose_peer_dies_over_the_last_checkpoint_leaves_without_it(runs: Runs) -> None:
    """A notice that is over too soon: all had agreed to leave, and then one of them fell silent."""
    code = (
        "import os, signal; from examples import train\n"
        "saves = train.Job.checkpoint\n"
        "def save(job, **more):\n"
        "    if os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    print('saving', flush=True)\n"
        "    saves(job, **more)\n"
        "train.Job.checkpoint = save\n"
        "train.main()\n"
    )
    arguments = ("--steps=1000", "--log-every=1", "--step-time=0.05", "--checkpoint-every=1000")
    one, other = runs.start_ranks(2, *arguments, code=code)
    one.wait_for_line("^step 5 ")
    other.send(signal.SIGTERM)
    one.wait_for_line("^saving")
    one.send(signal.SIGTERM)
    assert one.wait() == 143, one.output
    assert "the last checkpoint did not end within" in one.output
