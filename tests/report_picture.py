"""Make `docs/report.png`, the picture of a report: `python -m tests.report_picture`.

Runs an example that fails on purpose, and takes the top of its `timeline.html`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.browser import open_browser, why_no_browser

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "report.png"
EXAMPLE = (
    "examples/broken/optimizer-state.elastic.yaml::optimizer_state[job.script=optimizer_state.py]"
)


def main() -> int:
    """Run the example, and write the picture."""
    if why := why_no_browser():
        sys.stderr.write(
            f"no picture: {why} (apt-get install chromium chromium-driver; pip install selenium)\n"
        )
        return 1
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", EXAMPLE, "--elastic-seed=7"]
        command.append(f"--elastic-artifacts={folder}/runs")
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120, check=False)
        pages = list(Path(folder).glob("runs/*/timeline.html"))
        if len(pages) != 1:
            sys.stderr.write(f"no picture: {EXAMPLE} left {len(pages)} pages, expected one\n")
            return 1
        with open_browser(Path(folder, "profile"), width=1100, height=620) as browser:
            browser.get(pages[0].as_uri())
            # No scroll bar: a picture cannot be scrolled.
            browser.execute_script("document.documentElement.style.overflow = 'hidden'")
            browser.save_screenshot(str(PICTURE))
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
