"""Breaks the app on purpose, in every way that is known, and looks what is lost: `python -m tests.faults`."""

import sys

from tests.faults.command import main

sys.exit(main())
