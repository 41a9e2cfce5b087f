"""`python -m tracer …`: see `tracer.cli`."""

import sys

from tracer.cli import main

if __name__ == "__main__":
    sys.exit(main())
