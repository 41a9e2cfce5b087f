"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tracer.utils.error_text import quote


def write(path: str | Path, data: bytes) -> None:
    """Write a file under another name beside it, and rename it to `path`: the old file stays until then.

    Raise OSError with one sentence where that can't be done; on a full disk the old file stays. A special file, such as
    a pipe, is written to directly.
    """
    name, path = path, Path(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            part.write_bytes(data)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise type(error)(f"can't write {quote(str(name))}: {error.strerror or error}") from error
