"""A visitor's photo is in memory for the session alone: when that ends, nothing of the photo is held any more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).resolve().parents[1] / "hosted" / "forgotten.py"


@pytest.mark.sweep
def test_nothing_of_a_photo_is_held_when_its_visitor_has_left():
    places = PROBE.parents[2], PROBE.parents[1], PROBE.parent
    folders = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run([sys.executable, PROBE], env=folders, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["said"]
    assert found["there"]["photos"] and found["there"]["runs"]
    assert found["gone"] == {"files": 0, "pictures": 0, "photos": 0, "runs": 0}
