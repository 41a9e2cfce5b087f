"""Log lines of a hosted server: when, how bad, which line of code, which error. Nothing of what a visitor gave.

A message may quote a text, the name of a file or an address, whoever wrote it, so no message is written at all: the
place in the code says what happened, and the traceback without its messages how it came to that.
"""

import logging
import sys
import threading
import traceback


def contentless() -> None:
    """From now on nothing that this process logs, warns of or dies with has content, whatever handler writes it."""
    logging.setLogRecordFactory(_record)
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: _log(error)
    sys.unraisablehook = lambda args: _log(args.exc_value)
    threading.excepthook = lambda args: _log(args.exc_value)


def _record(name, level, path, line, message, args, error, *rest, **more) -> logging.LogRecord:
    """A record whose message is the place in the code, and what error passed which lines on the way to it."""
    said = "\n".join([f"{path}:{line}", *_passed(error[1] if error else None)])
    return logging.LogRecord(name, level, path, line, said.replace("%", "%%"), (), None, *rest[:1])


def _passed(error: BaseException | None) -> list[str]:
    lines = []
    while error is not None:
        lines.append(f"  {type(error).__module__}.{type(error).__qualname__}")
        lines += [f"    {frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def _log(error: BaseException | None) -> None:
    logging.getLogger(__name__).error("", exc_info=error)
