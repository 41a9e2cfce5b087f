"""Faults of the machine that take no time to make; `make faults` makes them all, also those under a visitor."""

import signal

import pytest
from faults import commands

from tracer import files

FAST = (
    commands.full_disk_under_a_save,
    commands.no_home,
    commands.read_only_install,
    commands.sigterm_under_a_command,
    commands.weights_missing_or_damaged,
)


@pytest.mark.parametrize("fault", FAST, ids=lambda fault: fault.__name__)
def test_a_fault_is_said_in_a_line_and_nothing_is_lost(fault, tmp_path):
    assert fault(tmp_path)


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.write(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"content"
    files.write("/dev/null", b"content")
    assert not (tmp_path / "null").exists()


def test_the_command_line_leaves_signals_of_a_program_that_calls_it_alone(capsys):
    from tracer import cli

    before = signal.getsignal(signal.SIGTERM)
    cli.main(["models"])
    assert signal.getsignal(signal.SIGTERM) is before
