"""`python -m tracer …`: see `tracer.cli`."""

import signal
import sys

from tracer import cli


def main() -> int:
    """Run the command line of this process and return its exit status."""
    signal.signal(signal.SIGTERM, raise_exit)
    return cli.main()


def raise_exit(number: int, frame) -> None:
    """Exit by an exception, so that half-written files are removed."""
    print("tracer: ended before it was done", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
