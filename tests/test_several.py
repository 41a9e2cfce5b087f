"""Several servers behind one port: who came to one stays with it, all bytes pass, and what fails is said."""

import asyncio
import json
import signal
import socket
from contextlib import asynccontextmanager

import psutil
import pytest
from load.visitor import Visitor
from serving import App, awaited
from test_cli import refused

from pages.shared import forked
from tracer.cli import several
from tracer.cli.several import Front


class Server:
    """Says which one it is, and then sends back what it gets, as a websocket would."""

    def __init__(self, number: int):
        self.number = number

    async def answer(self, reader, writer) -> None:
        await reader.readuntil(several.END)
        writer.write(f"HTTP/1.1 200 OK\r\nNumber: {self.number}\r\n\r\n".encode())
        while piece := await reader.read(100):
            writer.write(piece)
        writer.close()


@asynccontextmanager
async def several_behind(count: int):
    """A front before so many servers: its port, and itself."""
    running = [await asyncio.start_server(Server(number).answer, several.HERE, 0) for number in range(count)]
    front = Front([one.sockets[0].getsockname()[1] for one in running])
    outside = await asyncio.start_server(front.pass_on, several.HERE, 0, limit=several.HEAD)
    yield outside.sockets[0].getsockname()[1], front
    for one in (outside, *running):
        one.close()


async def asked(port: int, *lines: str):
    """The first lines of the answer to a request with these lines, and the connection."""
    reader, writer = await asyncio.open_connection(several.HERE, port)
    writer.write("\r\n".join(("GET / HTTP/1.1", *lines, "", "")).encode())
    return (await reader.readuntil(several.END)).decode(), reader, writer


def test_a_browser_is_sent_to_the_emptiest_and_stays_there():
    async def tried():
        async with several_behind(3) as (port, front):
            came = [await asked(port) for _ in range(6)]
            assert [head.count("Number: " + str(at % 3)) for at, (head, *_) in enumerate(came)] == [1] * 6
            assert [head.count(f"Set-Cookie: {several.COOKIE}={at % 3};") for at, (head, *_) in enumerate(came)] == [
                1
            ] * 6
            for cookies in ("{}=2", "visitor=x; {}=2", "{}=2; other=1"):
                came.append(await asked(port, f"cookie: {cookies.format(several.COOKIE)}"))
                assert "Number: 2" in came[-1][0] and "Set-Cookie" not in came[-1][0]
            assert front.connections == [2, 2, 5]
            for cookies in ("{}=3", "{}=-1", "other{}=2"):
                head, _, _ = await asked(port, f"cookie: {cookies.format(several.COOKIE)}")
                assert f"Set-Cookie: {several.COOKIE}=" in head

    awaited(tried())


def test_every_byte_passes_both_ways_and_an_end_is_passed_on():
    async def tried():
        async with several_behind(2) as (port, front):
            _, reader, writer = await asked(port)
            sent = bytes(range(256)) * 4000
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            for _ in range(100):
                if front.connections == [0, 0]:
                    break
                await asyncio.sleep(0.01)
            assert front.connections == [0, 0]

    awaited(tried())


def test_a_server_that_does_not_answer_and_lines_that_are_too_long_are_said(monkeypatch):
    monkeypatch.setattr(several, "STARTING", 0.2)

    async def tried():
        front = Front(several.free_ports(1))
        outside = await asyncio.start_server(front.pass_on, several.HERE, 0, limit=several.HEAD)
        port = outside.sockets[0].getsockname()[1]
        assert (await asked(port))[0].startswith("HTTP/1.1 503 ")
        assert (await asked(port, "X: " + "x" * several.HEAD))[0].startswith("HTTP/1.1 431 ")
        assert front.connections == [0]
        outside.close()

    awaited(tried())


@pytest.mark.parametrize("count", ["0", "-1", "two", "1e3"])
def test_a_number_of_servers_that_is_none_is_quoted(count, capsys):
    assert f"'{count}' is no number of servers" in refused(capsys, "app", "--servers", count)


def test_a_port_that_is_taken_is_quoted(capsys):
    with socket.create_server((several.HERE, 0)) as taken:
        at = f"{several.HERE}:{taken.getsockname()[1]}"
        assert f"can't listen at '{at}'" in refused(capsys, "app", "--servers", "2", "--port", at.split(":")[1])


async def lesson(address: str):
    """What four visitors meet who open the app and go to the next page: their places, and problems."""
    visitors = [Visitor(address) for _ in range(4)]
    answers = [await visitor.open() for visitor in visitors]
    answers += [await visitor.follow(visitor.find("page_link", "Trace")) for visitor in visitors]
    return [visitor.cookies[several.COOKIE] for visitor in visitors], [answer.problems for answer in answers]


def test_two_servers_of_the_app_serve_a_class_and_share_memory(tmp_path):
    with App(tmp_path / "log.txt", servers=2) as app:
        places, problems = awaited(lesson(app.address))
        assert sorted(places) == ["0", "0", "1", "1"] and not any(problems), json.dumps(problems)
        servers = psutil.Process(app.process.pid).children()
        shared = [sum(part.shared_dirty for part in server.memory_maps()) for server in servers]
        assert len(servers) == 2 and all(size > 100 * 2**20 for size in shared), "memory that both have since the fork"
        servers[0].kill()
        assert app.process.wait(30) == signal.SIGKILL
        assert not any(server.is_running() for server in servers)


def test_a_process_that_holds_an_accelerator_is_not_forked(monkeypatch):
    monkeypatch.setenv("TRACER_DEVICE", "cuda")
    assert not forked.load()
