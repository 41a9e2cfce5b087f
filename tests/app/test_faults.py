"""Faults of the machine that are quick to simulate; `make faults` runs them all, also those under a visitor."""

import os
import signal
import subprocess
import sys
import time

import pytest
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartParser
from streamlit.testing.v1 import AppTest

import app
from pages.jobs import run_cache
from pages.server import app_factory
from tests.faults import commands
from tests.security.test_load import run_coroutine
from tests.support.serving import ROOT
from tracer.utils import files

FAST_COMMANDS = (
    pytest.param(commands.full_disk_under_a_save, marks=pytest.mark.sweep),
    pytest.param(commands.no_home, marks=pytest.mark.sweep),
    commands.read_only_install,
    pytest.param(commands.weights_missing_or_damaged, marks=pytest.mark.sweep),
)


@pytest.mark.parametrize("fault", FAST_COMMANDS, ids=lambda fault: getattr(fault, "__name__", None))
def test_a_fault_is_said_in_a_line_and_nothing_is_lost(fault, tmp_path):
    assert fault(tmp_path)


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.write(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"content"
    files.write("/dev/null", b"content")
    assert not (tmp_path / "null").exists()


def test_a_write_that_is_broken_off_leaves_the_file_of_before_and_no_other(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"of before")

    def raise_exit(*paths):
        raise SystemExit(143)

    monkeypatch.setattr(files.os, "replace", raise_exit)
    with pytest.raises(SystemExit):
        files.write(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_bytes() == b"of before"


def test_a_process_that_is_killed_half_through_a_file_leaves_the_one_of_before(tmp_path):
    (tmp_path / "file").write_bytes(b"of before")
    program = "from tracer.utils import files; files.write('file', bytes(1 << 30))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment) as saving:
        while not any(part.stat().st_size for part in tmp_path.glob(".file.*.part")):
            assert saving.poll() is None
            time.sleep(0.001)
        saving.kill()
    assert saving.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == b"of before"


def test_the_file_of_a_visitor_is_not_put_on_a_disk():
    """Starlette puts parts of a form beyond a megabyte into a file, unless it is told otherwise."""
    app_factory.around([])
    data = bytes(3 << 20)
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'

    async def body_chunks():
        yield head + data + b"\r\n--x--\r\n"
        yield b""

    headers = Headers({"content-type": "multipart/form-data; boundary=x"})
    form = run_coroutine(MultiPartParser(headers, body_chunks()).parse())
    assert form["file"].size == len(data) and not form["file"].file._rolled


def test_the_command_line_leaves_signals_of_a_program_that_calls_it_alone(capsys):
    from tracer import cli

    before = signal.getsignal(signal.SIGTERM)
    cli.main(["models"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_model_without_its_weights_is_a_sentence_on_its_page(monkeypatch):
    def raise_missing(*chosen):
        raise ValueError("weights 'nanogpt.safetensors' can't be read: No such file or directory")

    monkeypatch.setattr(run_cache, "load", raise_missing)
    at = AppTest.from_file(app.__file__, default_timeout=120)
    at.query_params["model"], at.query_params["text"] = "nanogpt", "To be"
    at.run()
    assert not at.exception
    assert ["nanogpt.safetensors" in box.value for box in at.error] == [True]
