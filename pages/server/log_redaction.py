"""Log lines of a hosted server: time, level, line of code, and error, without any content of a visitor.

A message may quote a text, the name of a file or an address, so no message is written at all: the position in the code
tells what happened, and the lines that raised the errors tell why. Each record is one line, so that a thousand refused
requests fill no disk.
"""

import logging
import sys
import threading
import traceback

MAX_CAUSES = 4
"""Errors of which one came of the other."""


def contentless() -> None:
    """Strip the content from everything that this process logs, warns of or dies with, for every handler."""
    logging.setLogRecordFactory(_record)
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: _log(error)
    sys.unraisablehook = lambda args: _log(args.exc_value)
    threading.excepthook = lambda args: _log(args.exc_value)


def _record(name, level, path, line, message, args, error, *rest, **more) -> logging.LogRecord:
    """Return a record whose message is the position in the code, and each error with the line that raised it."""
    place = " ".join([f"{path}:{line}", *_error_positions(error[1] if error else None)])
    return logging.LogRecord(name, level, path, line, place.replace("%", "%%"), (), None, *rest[:1])


def _error_positions(error: BaseException | None) -> list[str]:
    errors: list[str] = []
    while error is not None and len(errors) < MAX_CAUSES:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        errors.append(f"{type(error).__module__}.{type(error).__qualname__}{where}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return errors


def _log(error: BaseException | None) -> None:
    logging.getLogger(__name__).error("", exc_info=error)
