"""Arguments that several commands share: whole numbers, the view of a trace, and its output."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from tracer import export
from tracer.record import Trace
from tracer.utils import files
from tracer.utils.errors import limits, quote

if TYPE_CHECKING:
    from PIL.Image import Image


# Switch of the app's page that runs its owner's code: on only where the command line turned it on in this process.
#
# Nothing in the environment, in a file or in an address turns it on.

_key = ""


def enable(address: str) -> str:
    """Turn the switch on and return the key that unlocks the page. Raise ValueError with one sentence where it may not
    be on: hosted, or listening to others."""
    global _key
    if limits().hosted:
        raise ValueError("--own-code runs code of visitors with your rights, so it can't be used with TRACER_HOSTED=1")
    if not is_loopback(address):
        raise ValueError(
            f"--own-code listens on this machine alone, expected --address 127.0.0.1, not {quote(address)}"
        )
    _key = "-".join(secrets.token_hex(2) for _ in range(3))
    return _key


def key() -> str:
    """Return the key, "" where the switch is off."""
    return _key


def is_loopback(name: str) -> bool:
    """Return whether a name or a numeric address is this machine's loopback."""
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that the package lies in; with `tests/` beside it where it is a checkout."""
RUN_SUFFIX = ".safetensors"
INTEGER_PATTERN = re.compile("[0-9]{1,9}")
SET_EXPECTATION = "expected SYMBOL=INT with a whole number from 1, such as D=64"


def whole(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number from `least`."""

    def read(text: str) -> int:
        if not (INTEGER_PATTERN.fullmatch(text) and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{quote(text)} is not a number, expected a whole number from {least}")
        return int(text)

    return read


def pair(text: str) -> tuple[str, str]:
    """Return `"D=64"` as ("D", "64"). Raise ArgumentTypeError for anything else."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals and value):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a size, {SET_EXPECTATION}")
    return name, value


def several(parser: argparse.ArgumentParser, option: str, form: str, help: str, type: Callable = pair) -> None:
    """Add an option with one or more values, such as `D=64 h=4`, that can be given again."""
    parser.add_argument(option, metavar=form, type=type, nargs="+", action="extend", default=[], help=help)


def change(parser: argparse.ArgumentParser) -> None:
    """Add --change."""
    help = (
        "replace the value of a line: zero, off, mean, scale(0.5), drop_heads(1), keep_heads(0), noise(0.1,7), "
        "shuffle(0), take(LINE), unscale, bidirectional, causal, window(8); 'parameter PATH' stands for a parameter; "
        "image=hide(27,28,grey), text=mask_words(3;0) and weights=permute(0) change what goes in"
    )
    several(parser, "--change", "LINE=CHANGE", help, str)


def inputs(parser: argparse.ArgumentParser) -> None:
    """Add --image and --text."""
    parser.add_argument("--image", metavar="F", help="a photo")
    parser.add_argument("--text", metavar="T", help="a text")


def run_and_file(parser: argparse.ArgumentParser, file: str = "file") -> None:
    """Add NAME, --image, --text and --out, a kind of file."""
    parser.add_argument("name", metavar="NAME", help=f"a model, or a saved run ({RUN_SUFFIX})")
    inputs(parser)
    letters(parser)
    parser.add_argument("--out", metavar="F", help=f"write to this {file} (default: standard output)")


def letters(parser: argparse.ArgumentParser) -> None:
    """Add --letters."""
    parser.add_argument(
        "--letters",
        metavar="TEXT",
        default=export.OURS,
        help="equations in the letters of a text: 000 to 004, 2017, 2021",
    )


def write(text: str, out: str | None) -> None:
    """Write a text to a file, or to standard output."""
    if out is None:
        sys.stdout.write(text)
    else:
        files.write(out, text.encode())


def add_checkout(option: str, folder: str) -> None:
    """Make the tests of a checkout importable. Raise ValueError in an installed package, which lacks them."""
    if not (CHECKOUT / "tests" / folder).is_dir():
        raise ValueError(f"{option} needs the tests of a checkout of the project, which an installed package lacks")
    sys.path.insert(0, str(CHECKOUT))


def photo(path: str | None) -> Image | None:
    """Return the photo of that path, None for none. Raise OSError or ValueError for an unreadable one."""
    from tracer.inputs.images import open_photo  # here, so that --help answers at once

    if path is None:
        return None
    try:
        return open_photo(Path(path).read_bytes())
    except OSError as error:
        raise type(error)(f"can't read {quote(path)}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{quote(path)}: {error}") from error


def check_takes(name: str, inputs: Mapping[str, str | None], takes: Sequence[str]) -> None:
    """Raise ValueError for an input that the model `name` does not take; `inputs` are those given, by option."""
    for option, value in inputs.items():
        kind = option.removesuffix("-b")
        if value is not None and kind not in takes:
            known = " and ".join(takes) or "its own sample"
            raise ValueError(f"--{option} {quote(value)}: {quote(name)} takes no {kind}, expected {known}")


def given_inputs(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the values of --image and --text."""
    return {"image": options.image, "text": options.text}


def view(parser: argparse.ArgumentParser) -> None:
    """Add --level, also called --zoom, --format and --out."""
    parser.add_argument("--level", "--zoom", choices=export.LEVELS, default="steps", help="zoom level (default: steps)")
    kinds = ", ".join(export.FORMATS)
    parser.add_argument(
        "--format", choices=export.FORMATS, metavar="FORMAT", help=f"one of {kinds} (default: table, or by --out)"
    )
    letters(parser)
    parser.add_argument("--out", metavar="F", help=f"write to this file; {RUN_SUFFIX} saves the trace itself")


def check_view(options: argparse.Namespace) -> None:
    """Raise ValueError for a view that can't be built, before the model runs."""
    export.check_level(options.level)
    form = options.format or (export.format_of(options.out) if options.out else "table")
    export.check_letters(options.letters, options.level, form or RUN_SUFFIX)
    if options.out is None:
        return
    if options.out.endswith(RUN_SUFFIX):
        if options.format:
            conflict = f"--format {options.format} with --out {quote(options.out)}"
            raise ValueError(f"{conflict}: that file holds the whole trace, expected one of the two")
    elif not (options.format or export.format_of(options.out)):
        raise ValueError(
            f"--out {quote(options.out)} names no format, expected --format or one of {export.suffixes()}, {RUN_SUFFIX}"
        )


def show(trace: Trace, options: argparse.Namespace) -> None:
    """Print or write the trace as the options say."""
    if options.out is None:
        sys.stdout.write(export.render(trace, options.level, options.format or "table", options.letters))
        if options.level == "steps" and (options.format or "table") == "table":
            from tracer.diagnostics import findings  # loads torch

            lines = list(findings.report(trace))
            sys.stdout.write("".join(f"{line}\n" for line in ["", *lines] if lines))
    elif options.out.endswith(RUN_SUFFIX):
        trace.save(options.out)
    else:
        form = options.format or export.format_of(options.out) or "table"
        write(export.render(trace, options.level, form, options.letters), options.out)
