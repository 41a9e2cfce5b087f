"""Several servers of the app behind one port: a browser stays with the one that it came to first.

One Python process runs on one core at a time, so that a class waits for it while others are idle. Here each server is a
process with a port of its own, and this one passes bytes on. It reads the first lines of each connection only: a cookie
says where a browser belongs, and one that has none is sent where the fewest connections are. It needs nothing but
Python's own library, and runs as a program, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping, Sequence
from contextlib import suppress

HERE = "127.0.0.1"
COOKIE = "tracer_server"
HEAD = 64 * 2**10
"""Bytes that the first lines of a request or an answer take, at most."""
PIECE = 64 * 2**10
STARTING = 60.0
"""Seconds in which a server that was started answers."""
ENDING = 20.0
"""Seconds in which a server that is told to end has ended."""
END = b"\r\n\r\n"
TOLD = signal.SIGTERM, signal.SIGINT


class Front:
    """Passes connections on to servers at these ports of this machine; `connections` counts those of each now."""

    def __init__(self, ports: Sequence[int]):
        self.ports, self.connections = tuple(ports), [0] * len(ports)
        self._passing: set[asyncio.Task | None] = set()  # the loop itself holds tasks weakly

    async def pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Passes one connection on, until one side has closed it."""
        self._passing.add(task := asyncio.current_task())
        try:
            await self._pass_on(reader, writer)
        finally:
            self._passing.discard(task)

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                head = await reader.readuntil(END)
            except asyncio.LimitOverrunError:
                writer.write(_answer("431 Request Header Fields Too Large", "This request's first lines are too long."))
            else:
                known = self._belongs(head)
                place = self._emptiest() if known is None else known
                await self._between(place, known is None, head, reader, writer)
        await _closed(writer)

    async def _between(self, place: int, new: bool, head: bytes, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections[place] += 1
        try:
            there, back = await _connected(self.ports[place])
        except OSError:
            writer.write(_answer("503 Service Unavailable", "This server is starting or has ended: try again."))
            self.connections[place] -= 1
            return
        try:
            back.write(head)
            sending = asyncio.create_task(_copied(reader, back))
            if new:
                writer.write(_marked(await there.readuntil(END), place))
            await _copied(there, writer)
        finally:
            sending.cancel()
            self.connections[place] -= 1
            await _closed(back)

    def _belongs(self, head: bytes) -> int | None:
        """The server that a browser came to before; None where it is new, or was with one that is no more."""
        found = re.search(rb"(?im)^cookie:(?:[^\r\n]*;)?\s*%s=(\d{1,3})\s*(?:;|\r$)" % COOKIE.encode(), head)
        place = int(found[1]) if found else len(self.ports)
        return place if place < len(self.ports) else None

    def _emptiest(self) -> int:
        return min(range(len(self.ports)), key=self.connections.__getitem__)


def _marked(head: bytes, place: int) -> bytes:
    """The first lines of an answer, with the cookie that says where the browser belongs from now on."""
    return head[: -len(END)] + f"\r\nSet-Cookie: {COOKIE}={place}; Path=/; HttpOnly; SameSite=Lax".encode() + END


async def _connected(port: int) -> tuple[StreamReader, StreamWriter]:
    """A connection to a server, which may be starting still. OSError where it does not answer."""
    over = asyncio.get_running_loop().time() + STARTING
    while True:
        try:
            return await asyncio.open_connection(HERE, port, limit=HEAD)
        except ConnectionRefusedError:
            if asyncio.get_running_loop().time() > over:
                raise
            await asyncio.sleep(0.1)


async def _copied(source: StreamReader, goal: StreamWriter) -> None:
    """Passes on what comes, as fast as it is taken, and then the end of it."""
    with suppress(OSError):
        while piece := await source.read(PIECE):
            goal.write(piece)
            await goal.drain()
        if goal.can_write_eof():
            goal.write_eof()


async def _closed(writer: StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


def _answer(status: str, said: str) -> bytes:
    body = said.encode()
    lines = f"HTTP/1.1 {status}", "Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(body)}"
    return "\r\n".join((*lines, "Connection: close", "", "")).encode() + body


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HERE, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Forked:
    """A server that this process forked before it became what it is, by its number."""

    def __init__(self, pid: int):
        self.pid = pid

    def wait(self) -> int:
        """The exit status, once it has ended; negative where a signal ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def terminate(self) -> None:
        """Tells it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGKILL)


async def serve(outside: socket.socket, servers: Mapping[int, Forked | subprocess.Popen]) -> int:
    """Passes what comes to `outside` on to the servers, by port, until one of them ends or this process is told to; the
    exit status."""
    front, told = Front(tuple(servers)), asyncio.Event()
    for number in TOLD:
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    listening = await asyncio.start_server(front.pass_on, sock=outside, limit=HEAD)
    ends = {server: asyncio.create_task(asyncio.to_thread(server.wait)) for server in servers.values()}
    asked = asyncio.create_task(told.wait())
    done, _ = await asyncio.wait([*ends.values(), asked], return_when=asyncio.FIRST_COMPLETED)
    listening.close()
    await asyncio.gather(*(_ended(server, end) for server, end in ends.items()))
    asked.cancel()
    return 0 if asked in done else abs(next(end.result() for end in ends.values() if end in done))


async def _ended(server: Forked | subprocess.Popen, end: asyncio.Task) -> None:
    """Ends a server, gently first."""
    with suppress(ProcessLookupError):
        if not end.done():
            server.terminate()
        await asyncio.wait([end], timeout=ENDING)
        if not end.done():
            server.kill()
        await end


def main(descriptor: str, *servers: str) -> int:
    """The front as a program: the number of the socket that it listens at, then PORT=PID of each server that was forked
    from this process."""
    ports = (server.split("=") for server in servers)
    forked = {int(port): Forked(int(pid)) for port, pid in ports}
    return asyncio.run(serve(socket.socket(fileno=int(descriptor)), forked))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
