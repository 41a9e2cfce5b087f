"""Folder of a public Space: the files that it copies exist, and its command starts the hosted app."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request

import pytest

from pages.server import request_gate
from tests.support.serving import ROOT, App
from tracer.utils.errors import limits

LINES = (ROOT / "hosting" / "space" / "Dockerfile").read_text(encoding="utf-8").splitlines()
ENVIRONMENT = dict(line.removeprefix("ENV ").split("=", 1) for line in LINES if line.startswith("ENV "))


def test_what_is_copied_and_stated_is_known():
    copied = [line.split()[1] for line in LINES if line.startswith("COPY")]
    assert len(copied) > 4 and all((ROOT / name).exists() for name in copied)
    own = {name for name in ENVIRONMENT if name.startswith("TRACER_")}
    assert own == {"TRACER_HOSTED", "TRACER_HOST", "TRACER_FRAMED_BY"}


def test_what_is_installed_by_its_hash_is_what_is_pinned():
    """`==` in both, each with a hash; torch is installed apart, since its builds differ."""
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    locked = (ROOT / "hosting" / "requirements.lock").read_text()
    entries = dict(
        re.findall(r"^([\w-]+)==([\w.]+)(?: ;[^\n]*)? \\\n    --hash=sha256:[0-9a-f]{64}", locked, re.MULTILINE)
    )
    assert {name: version for name, version in pinned.items() if name != "torch"}.items() <= entries.items()
    assert len(entries) == len(re.findall("^[a-z]", locked, re.MULTILINE)) > 40
    torch = f"torch=={pinned['torch']}"
    assert torch in (ROOT / "compose.yaml").read_text() and any(torch in line for line in LINES)


def test_a_page_may_be_framed_by_the_sites_that_are_named(monkeypatch):
    assert "frame-ancestors 'none'" in request_gate.policy("")
    monkeypatch.setenv("TRACER_FRAMED_BY", ENVIRONMENT["TRACER_FRAMED_BY"])
    assert "frame-ancestors https://huggingface.co;" in request_gate.policy("") + ";"
    monkeypatch.setenv("TRACER_FRAMED_BY", "huggingface.co; script-src *")
    with pytest.raises(ValueError, match=r"'huggingface\.co;' was given, expected a site such as https:"):
        limits()


@pytest.mark.sweep
def test_its_command_serves_the_app(tmp_path):
    """As a plain process, in the folder that `make space` fills, with its environment and nothing else of ours."""
    folder = tmp_path / "space"
    subprocess.run(["make", "--no-print-directory", "space", f"FOLDER={folder}"], cwd=ROOT, check=True)
    command = json.loads(next(line for line in LINES if line.startswith("CMD"))[4:])
    port = command[command.index("--port") + 1]
    kept = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}
    app = App(tmp_path / "log.txt", root=folder, port=int(port), health="/healthz")
    app.command, app.environment = [sys.executable, *command[1:]], {**kept, **ENVIRONMENT, "HOME": str(tmp_path)}
    with app:
        asked = urllib.request.Request(f"{app.address}/trace", headers={"Host": "somebody-tracer.hf.space"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert "frame-ancestors https://huggingface.co" in answer.headers["Content-Security-Policy"]
            assert re.search("<div id=.root.>", answer.read().decode())
    assert shlex.join(command).startswith("python -m tracer app") and "Traceback" not in app.log()
