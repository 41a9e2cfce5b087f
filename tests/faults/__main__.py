"""Breaks the app on purpose, in every way that is known, and looks what is lost: `python tests/faults`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from faults.command import main  # noqa: E402  (the folders above are on the path only now)

sys.exit(main())
