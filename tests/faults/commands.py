"""Faults of the machine under the command line: nothing that was there is lost, and one line says what happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.hub import Hub
from tests.faults.place import ROOT, change_environment, copy_install, read_only, refusal, small_disk, tracer

SMALL = ("vit", "--set", "L=1", "D=16", "h=2", "d_ff=16")
"""A run that takes no time, of 10 kB and more in each format."""
DISK = 8 << 10


def full_disk_under_a_save(folder: Path) -> str:
    """Keep the old file, whole, in each format, with nothing half written beside it."""
    with small_disk(folder / "disk", DISK) as limits:
        for name in ("run.safetensors", "run.csv"):
            (folder / "disk" / name).write_text("of before")
            level = () if name.endswith("safetensors") else ("--level", "ops")
            said = refusal(tracer("trace", *SMALL, *level, "--out", folder / "disk" / name, **limits), name)
            assert "No space left" in said or "too large" in said, said
            assert (folder / "disk" / name).read_text() == "of before", f"{name} of before is lost"
            (folder / "disk" / name).unlink()
            left = [path.name for path in (folder / "disk").iterdir()]
            assert not left, f"left behind: {left}"
    return said


def full_disk_under_a_download(folder: Path) -> str:
    """One line; and with room, the same command works."""
    with Hub(folder / "hub") as hub:
        run = ("trace", f"hf:{hub.model}", "--level", "ops")
        with small_disk(folder / "disk", 100 << 10) as limits:
            environment = {**hub.environment, "HF_HOME": str(folder / "disk")}
            said = refusal(tracer(*run, **limits, **environment), hub.model)
        done = tracer(*run, **{**hub.environment, "HF_HOME": str(folder / "room")})
        assert done.returncode == 0 and "weights of" in done.stderr, done.stderr[-300:]
    return said


def download_cut_off(folder: Path) -> str:
    """One line; nothing half downloaded is taken for whole the next time."""
    with Hub(folder / "hub") as hub:
        run, home = ("trace", f"hf:{hub.model}", "--level", "ops"), str(folder / "home")
        hub.cut = True
        said = refusal(tracer(*run, **{**hub.environment, "HF_HOME": home}), hub.model)
        hub.cut = False
        done = tracer(*run, **{**hub.environment, "HF_HOME": home})
        assert done.returncode == 0 and "weights of" in done.stderr, done.stderr[-300:]
    return said


def sigterm_under_a_command(folder: Path) -> str:
    """A command that is ended, in its run or half through a file, leaves the file of before and nothing else."""
    path = folder / "run.safetensors"
    slow = "import os, time, runpy; real = os.replace; "  # the moment between the two files, made long
    slow += "os.replace = lambda *two: time.sleep(20) or real(*two); runpy.run_module('tracer', run_name='__main__')"
    command = [sys.executable, "-c", slow, "trace", *SMALL, "--out", str(path)]
    for moment in ("in the run", "half through the file"):
        path.write_text("of before")
        process = subprocess.Popen(command, cwd=ROOT, env=change_environment({}), stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while moment != "in the run" and len(list(folder.iterdir())) == 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(1.5 if moment == "in the run" else 0)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        left = sorted(found.name for found in folder.iterdir())
        assert path.read_text() == "of before" and left == ["run.safetensors"], f"{moment}: left behind: {left}"
        assert process.returncode in (143, -15) and "Traceback" not in said, f"{moment}: {process.returncode} {said}"
    return said.splitlines()[-1]


def read_only_install(folder: Path) -> str:
    """Commands work, and what they are to write into the install is refused in a line."""
    root = copy_install(folder)
    with read_only(root):
        done = tracer("trace", *SMALL, "--out", folder / "run.safetensors", root=root)
        assert done.returncode == 0, done.stderr[-300:]
        said = refusal(tracer("trace", *SMALL, "--out", root / "run.json", root=root), "run.json")
    return said


def no_home(folder: Path) -> str:
    """Commands work without a home folder, of models of ours and of a library."""
    library = ("hf:bert", "--set", "L=1", "D=12", "h=2", "V=31", "d_ff=8")
    for home, name in ((None, ("vit", "--set", "L=1")), ("/proc/nothing", library)):
        done = tracer("trace", *name, HOME=home, XDG_CACHE_HOME=None, HF_HOME=None)
        assert done.returncode == 0, f"HOME={home}, {name[0]}: {done.stderr[-300:]}"
        assert not (ROOT / "~").exists(), "a folder ~ was made in that of the program"
    return "vit was traced with no HOME, and hf:bert with one that can't be made"


def no_network(folder: Path) -> str:
    """Name everything that is missing on the machine, and say where random weights take its place."""
    closed = "http://127.0.0.1:9"
    nothing = {"HF_HUB_OFFLINE": None, "HF_ENDPOINT": closed, "HF_HOME": str(folder), "TORCH_HOME": str(folder)}
    nothing |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"))
    said = refusal(tracer("trace", "hf:openai-community/gpt2", **nothing), "gpt2", "can't be reached")
    done = tracer("trace", "timm:vit_tiny_patch16_224", "--format", "csv", **nothing)
    assert done.returncode == 0 and "random weights" in done.stderr, done.stderr[-300:]
    return said


def weights_missing_or_damaged(folder: Path) -> str:
    """One line names the file; the other models work."""
    root = copy_install(folder)
    file = root / "tracer" / "models" / "weights" / "vit.safetensors"
    whole, card = file.read_bytes(), file.with_suffix(".json").read_text()
    file.unlink()
    said = refusal(tracer("trace", "vit", root=root), "vit.safetensors")
    for data in (whole[: len(whole) // 2], b"\xff" * 8 + whole[8:]):
        file.write_bytes(data)
        refusal(tracer("trace", "vit", root=root), "vit.safetensors")
    file.write_bytes(whole)
    for text in (card[:40], json.dumps({"sizes": json.loads(card)["sizes"] | {"P": 0}})):
        file.with_suffix(".json").write_text(text)
        refusal(tracer("trace", "vit", root=root), "vit.json")
    done = tracer("trace", "nanogpt", "--set", "L=1", root=root)
    assert done.returncode == 0, done.stderr[-300:]
    return said
