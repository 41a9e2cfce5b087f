"""Body of a small request, read up to a limit."""

from starlette.requests import Request


async def read(request: Request, most: int) -> bytes | None:
    """Return the body of a request, or None if it is longer than `most` bytes."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return body
