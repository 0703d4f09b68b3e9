from __future__ import annotations

from pathlib import Path

from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.report.noted_times import read_marks
from elastic_harness.scenario.stage.clocks import LogClock

from pytest_elastic.loop import Loop


def test_the_growth_of_every_log_is_noted_with_its_time(tmp_path: Path) -> None:
    """While the loop runs, and once more at the end; what does not grow is noted once."""
    logs = tmp_path / "logs"
    (logs / "n1" / "rank").mkdir(parents=True)
    first, second = logs / "n1" / "launcher.log", logs / "n1" / "rank" / "0.log"
    first.write_text("one\n")
    (logs / "n1" / "other.txt").write_text("none of ours")
    loop = Loop()
    clock = LogClock(loop, LocalLogs(), str(logs), str(tmp_path / "times"))
    began = loop.now()
    clock.start()

    def write_later() -> None:
        second.write_text("two, later\n")

    loop.call_at(began + 0.05, write_later)
    loop.call_at(began + 0.5, loop.stop)
    loop.run()
    first.write_text("one\nand the end\n")
    clock.close()
    marks = read_marks((tmp_path / "times").read_text().splitlines())
    assert {name: [mark.size for mark in found] for name, found in marks.items()} == {
        "n1/launcher.log": [4, 16],
        "n1/rank/0.log": [11],
    }
    times = [marks["n1/launcher.log"][0], marks["n1/rank/0.log"][0], marks["n1/launcher.log"][1]]
    assert [mark.at for mark in times] == sorted(mark.at for mark in times)
    assert times[1].at > began + 0.1


def test_a_file_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    """A full disk costs the times of the lines, and nothing else."""
    clock = LogClock(Loop(), LocalLogs(), str(tmp_path), str(tmp_path / "missing" / "times"))
    clock.start()
    clock.close()
    assert not (tmp_path / "missing").exists()
