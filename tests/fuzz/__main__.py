"""Opens damaged and generated photos, saved runs, checkpoints and addresses: `python tests/fuzz --count 200000`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from fuzz.command import main  # noqa: E402  (the folders above are on the path only now)

sys.exit(main())
