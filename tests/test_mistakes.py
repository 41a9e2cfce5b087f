"""The harness of mistakes: each can be applied, a sample is caught, and what survives is said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tracer.verify.mistakes import ROOT, Mistake
from tracer.verify.mistakes import report as reports
from tracer.verify.mistakes.drawn import drawn, every
from tracer.verify.mistakes.harness import Model, Trial, _copied
from tracer.verify.mistakes.listed import LISTED

SAMPLE = """
import json, sys
from tracer.verify.mistakes import Mistake, harness
from tracer.verify.mistakes.listed import LISTED

names = json.loads(sys.argv[1])
mistakes = [mistake for mistake in LISTED if mistake.name in names]
mistakes.append(Mistake("no mistake", "models/shared/results.py", "result", "result", 40))
mistakes.append(Mistake("no end", "models/shared/results.py", "def class_", "import os\\nos._exit(7)\\ndef class_"))
mistakes.append(Mistake("no such line", "vit.py", "", ""))
models = harness.prepared(models=[("vit", {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 2, "K": 3})])
found = {trial.mistake.name: trial.caught for trial in harness.tried(mistakes[:-1], models)}
try:
    list(harness.tried(mistakes[-1:], models))
except (ValueError, OSError) as error:
    found["no such line"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What caught each of a sample, tried on one small model, in a process whose imports the harness can undo."""
    names = ["rollout in reverse", "a softmax of half the logits", "a tolerance of a tenth", "the crop one pixel off"]
    command = [sys.executable, "-c", SAMPLE, json.dumps(names)]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rollout in reverse", "vit: weights: rollout of '' after layer 1 is off by"),
        ("a softmax of half the logits", "vit: answers: probabilities"),
        ("a tolerance of a tenth", "vit: proofs: in float32 an error of 0.0001 is called proven"),
        ("the crop one pixel off", "is not in the middle of a photo"),
        ("no end", "the process ended with status 7"),
    ],
)
def test_a_mistake_is_caught_by_the_check_that_is_there_for_it(found, name, said):
    assert said in found[name]


def test_no_mistake_is_not_caught(found):
    assert found["no mistake"] == ""


def test_there_are_enough_and_each_can_be_applied():
    assert len(LISTED) >= 60 and len({mistake.name for mistake in LISTED}) == len(LISTED)
    for mistake in (*LISTED, *drawn()):
        changed = mistake.applied()
        assert changed != mistake.text()
        if mistake.file.endswith(".py"):
            compile(changed, mistake.file, "exec")


@pytest.mark.sweep
def test_those_that_are_drawn_depend_on_the_seed_alone():
    assert drawn() == drawn() and len(drawn()) == 200 and drawn(seed=1) != drawn()
    kinds = {mistake.name.split(":")[0] for mistake in drawn()}
    assert kinds == {"sign", "index", "comparison", "constant", "arguments", "order"}


def test_what_does_not_stand_there_is_an_error():
    for old, count in (("softmax(scores / 3)", "0 times"), ("import", r"\d+ times")):
        with pytest.raises(
            ValueError,
            match=f"'x': {old!r} stands {count} in models/shared/results.py, expected once".replace("(", r"\(").replace(
                ")", r"\)"
            ),
        ):
            Mistake("x", "models/shared/results.py", old, "y").applied()


def test_the_copy_differs_in_one_file(tmp_path):
    mistake = next(mistake for mistake in LISTED if mistake.file == "recorder/softmaxes.py")
    _copied(tmp_path, mistake)
    other = [
        p for p in Path(ROOT).rglob("*.py") if (tmp_path / "tracer" / p.relative_to(ROOT)).read_text() != p.read_text()
    ]
    assert [path.relative_to(ROOT).as_posix() for path in other] == ["recorder/softmaxes.py"]


def test_only_models_that_run_its_line_are_asked():
    mistake = next(mistake for mistake in LISTED if mistake.file == "models/shared/anomaly.py")
    assert Model("mae", {}, lines={"models/shared/anomaly.py": {mistake.line}}).runs(mistake)
    assert not Model("vit", {}, lines={"models/shared/anomaly.py": {1}}).runs(mistake)
    card = next(mistake for mistake in LISTED if mistake.file == "models/weights/vit.json")
    assert [Model("vit", {}).runs(card), Model("vit", {"D": 6}).runs(card), Model("mae", {}).runs(card)] == [1, 0, 0]


def test_the_report_names_survivors_and_the_bar():
    caught, survived = Trial(LISTED[0], "vit: step 'x' is off", "vit", 1), Trial(LISTED[1], tried=3)
    assert reports.line(caught).endswith("\n    vit: step 'x' is off")
    assert reports.line(survived).endswith("SURVIVED 3 models and files of tests")
    assert reports.summary([("listed", caught), *[("drawn", caught)] * 9, ("drawn", survived)])[1]
    said, enough = reports.summary([("listed", caught), ("listed", survived)])
    assert said == ["1 of 2 mistakes that are listed were caught; at least 100% have to be."] and not enough
    assert not reports.summary([("drawn", survived)])[1]
    with pytest.raises(ValueError, match="no mistake is called 'soap'"):
        reports.chosen(["soap"], 0)


@pytest.mark.sweep
def test_a_place_has_all_that_can_be_drawn_there():
    mistake = drawn()[0]
    _, found = reports.chosen([f"{mistake.file}:{mistake.line}"], 0)
    assert mistake in found and {(one.file, one.line) for one in found} == {(mistake.file, mistake.line)}
    assert len(found) >= sum((one.file, one.line) == (mistake.file, mistake.line) for one in drawn())
    with pytest.raises(ValueError, match="expected a name, a file or FILE:LINE of one"):
        reports.chosen([f"{mistake.file}:100000"], 0)


def test_every_mistake_that_can_be_drawn_changes_something():
    assert all(mistake.new != f"({mistake.old})" for mistake in every())


def test_a_survivor_that_is_harmless_says_why(monkeypatch):
    mistake = drawn()[0]
    monkeypatch.setitem(reports.HARMLESS, (mistake.file, mistake.name, ""), "it is never read")
    assert reports.line(Trial(mistake, tried=2)).endswith(
        "SURVIVED 2 models and files of tests; harmless: it is never read"
    )
    assert "harmless" not in reports.line(Trial(LISTED[0]))


@pytest.mark.sweep
def test_what_is_called_harmless_can_be_drawn():
    for file, name, part in reports.HARMLESS:
        assert any((one.file, one.name) == (file, name) and part in _line(one) for one in every()), (file, name, part)


def _line(mistake: Mistake) -> str:
    return mistake.text().splitlines()[mistake.line - 1]
