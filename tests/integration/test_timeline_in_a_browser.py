"""The timeline page in a real browser, without a driver: what its script makes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from elastic_harness.history.history import History
from elastic_harness.history.judge import judge
from elastic_harness.report.timeline import timeline_html

from tests.judge.mutants import RECORDED, load

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
def test_a_link_opens_the_page_zoomed_with_a_cursor_and_a_proof(tmp_path: Path) -> None:
    """The ticks are those of the part that is shown; the cursor's lines, the clause's records."""
    assert BROWSER is not None
    history = History.of(load(os.path.join(RECORDED, "crash-resume.jsonl.gz")))
    judgements = judge(history)
    clause = [each.title for each in judgements].index("steps_lost: {at_most: 5}")
    assert all(judgements), "else they stand in another order"
    page = tmp_path / "timeline.html"
    page.write_text(timeline_html(history, judgements))
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}/browser", "--dump-dom",
        f"{page.as_uri()}#from=1&to=2&t=1.25&clause={clause + 1}",
    ]  # fmt: skip
    environ = {**os.environ, "HOME": str(tmp_path)}
    shown = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    ticks = re.findall(r'class="tick-label"[^>]*>([^<]*)', shown)
    assert (ticks[0], ticks[1], ticks[-1]) == ("1 s", "1.05 s", "2 s")
    near = shown.partition('<div id="near"')[2].partition("</div>")[0]
    assert "1.250 s, and 2 s before and after" in near
    assert "! crash: kill rank 1 (n1, pid 7122)" in near
    assert "run ended" not in near, "that is more than 2 s later"
    proof = shown.partition('<tr class="proof-row">')[2].partition("</table>")[0]
    seqs = re.findall(r'<tr><td class="faint">(\d+)</td>', proof)
    assert seqs == [str(seq) for seq in judgements[clause].verdict.events]
    assert shown.count('class="proof"') == len(seqs)
