"""What a browser sends with a small request, read no further than it may be long."""

from starlette.requests import Request


async def read(request: Request, most: int) -> bytes | None:
    """The body of a request of that many bytes at most; None for a longer one."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return body
