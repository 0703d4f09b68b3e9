"""torch's own distributed checkpoints, unchanged, from warm workers."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.jobs import PROGRAMS, run_job


def test_two_warm_ranks_save_a_checkpoint_in_parts_and_load_it_again(tmp_path: Path) -> None:
    """`torch.distributed.checkpoint`; exec'ed, and more frameworks: `tox -e frameworks`."""
    ran = run_job(tmp_path, str(PROGRAMS / "distributed_checkpoint.py"))
    assert (ran.exit_code, ran.starts) == (0, ("warm",)), ran.output
    assert ran.results == {"0": "same True", "1": "same True"}, ran.output
