from __future__ import annotations

import pytest
from elastic_harness.report.session_page import RunSummary, step_summary


def run(name: str, outcome: str = "invalid", cause: str = "", screen: str = "") -> RunSummary:
    """Return a run of four seconds with seed 7."""
    return RunSummary(name=name, outcome=outcome, cause=cause, seconds=4, seed=7, screen=screen)


SHOWN = """\
### pytest-elastic: 2 runs: 1 invalid, 1 valid

<table>
<tr><td>invalid</td><td>b[&lt;x&gt;]</td><td>late | &lt;b&gt;</td><td>4.0 s</td><td>seed 7</td></tr>
<tr><td>valid</td><td>a</td><td></td><td>4.0 s</td><td>seed 7</td></tr>
</table>

<details><summary>b[&lt;x&gt;]</summary>

<pre>
INVALID: &lt;/pre&gt;

last seen
</pre>

</details>

"""


def test_a_summary_shown_whole() -> None:
    """The worst first, with its screen; what was said elsewhere is escaped."""
    failed = run("b[<x>]", cause="late |\n\n<b>", screen="INVALID: </pre>\n\nlast seen")
    assert step_summary([run("a", "valid"), failed], at_most=1_000_000) == SHOWN


@pytest.mark.parametrize("at_most", [0, 300, 1_000, 20_000, 400_000, 1_000_000])
def test_a_summary_is_never_larger_than_it_may_be(at_most: int) -> None:
    """Valid runs are left out first, then screens, then the rest; and it says how many."""
    failed = [run(f"failed {i:04}", cause="é" * 100, screen="é\n" * 1000) for i in range(300)]
    valid = [run(f"valid {i:04}", "valid") for i in range(300)]
    text = step_summary([*valid, *failed], at_most=at_most)
    assert len(text.encode()) <= at_most
    assert bool(text) == (at_most > 0)
    if not text:
        return
    rows, screens = text.count("<tr><td>invalid"), text.count("<pre>")
    left_out, cut = 600 - text.count("<tr>"), 300 - screens
    assert text.endswith(f"has a limit: {left_out} runs, {cut} screens.\n")
    assert screens == 0 or rows == 300
    assert "<tr><td>valid" not in text or cut == 0


def test_a_summary_of_few_runs_leaves_nothing_out() -> None:
    """There is no note then."""
    assert "Left out" not in step_summary([run("a", screen="x")], at_most=1_000_000)
