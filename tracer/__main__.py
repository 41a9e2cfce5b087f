"""`python -m tracer …`: see `tracer.cli`."""

import signal
import sys

from tracer import cli


def main() -> int:
    """Run the command line of this process and return its exit status."""
    signal.signal(signal.SIGTERM, raise_exit)
    return cli.main()


def raise_exit(number: int, frame) -> None:
    """Leaves by the way of an exception, so that a file that is half written is taken away."""
    print("tracer: ended before it was done", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
