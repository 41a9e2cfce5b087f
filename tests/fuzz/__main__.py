"""Opens damaged and generated photos, saved runs, checkpoints and addresses: `python -m tests.fuzz --count 200000`."""

import sys

from tests.fuzz.command import main

sys.exit(main())
