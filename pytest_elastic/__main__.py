"""Makes `python -m pytest_elastic` the same as the command `pytest-elastic`."""

import sys

from pytest_elastic.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
