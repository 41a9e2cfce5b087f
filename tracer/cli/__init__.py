"""The command line: one command per file in `commands`, discovered by itself.

Such a file has a docstring (its help), `arguments(parser)` and `run(options) -> int`, the exit status: 0, or 1 where a
proof failed. A user's mistake is a ValueError or OSError of one sentence, and so is a package that is not installed:
one line on standard error, exit status 2. Commands import torch when they run, so that `--help` and `models` answer at
once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from types import ModuleType
from typing import NoReturn

from tracer.utils import errors
from tracer.utils.errors import quote
from tracer.utils.lazy_import import import_folder

INTERRUPTED, BROKEN_PIPE = 130, 141


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        message = re.sub("'[^']{80,}'", lambda match: quote(match[0][1:-1]), message)
        raise ValueError(f"{message} (see {self.prog} --help)")


def find_commands() -> dict[str, ModuleType]:
    """Return the modules of the commands by name."""
    return dict(sorted(import_folder("tracer.cli.commands").items()))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    result = Parser(prog="python -m tracer", description="Trace transformers: every op, shape and equation of a run.")
    choices = result.add_subparsers(metavar="COMMAND", required=True)
    for name, module in find_commands().items():
        first, _, rest = (module.__doc__ or "").partition("\n\n")
        summary = " ".join(first.split())
        formatter = argparse.RawDescriptionHelpFormatter
        command = choices.add_parser(name, help=summary, description=f"{summary}\n\n{rest}", formatter_class=formatter)
        module.arguments(command)
        command.set_defaults(run=module.run)
    return result


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    try:
        options = parser().parse_args(argv)
        status = options.run(options)
        sys.stdout.flush()
        return status
    except SystemExit as exit:  # --help
        return int(exit.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has gone; what is still buffered must not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except ModuleNotFoundError as error:
        if not (missing := errors.explain(error, "this command")):
            raise
        print(f"tracer: {missing}", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(" ".join(f"tracer: {error}".split()), file=sys.stderr)
        return 2
