"""Harness of mutants: each can be applied, a sample is caught, and survivors are reported."""

import functools
import json
import subprocess
import sys

import pytest

from tests import mutation
from tests.mutation import ROOT, Mutant, rules, runner
from tests.mutation import report as reports
from tests.mutation.handwritten import HANDWRITTEN_RULES
from tests.mutation.nearest_tests import find_tests, is_verified
from tests.mutation.random_mutants import all_mutants, draw_mutants
from tests.mutation.rules import Rule, code, is_inside, qualified_name, raw, text
from tests.mutation.runner import Model, Trial, _copy_project

SAMPLE = """
import json, sys

from tests.mutation import Mutant, runner
from tests.mutation.handwritten import HANDWRITTEN_RULES

mutants = [rule.mutant() for rule in HANDWRITTEN_RULES if rule.name in sys.argv[1:]]
results = "tracer/spec/results.py"
mutants.append(Mutant("no mutant", results, "result", "result", 40))
mutants.append(Mutant("no end", results, "def class_", "import os\\nos._exit(7)\\ndef class_"))
mutants.append(Mutant("no such line", "vit.py", "", ""))
models = [runner.Model("vit", {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 2, "K": 3})]
found = {trial.mutant.name: trial.caught for trial in runner.try_mutants(mutants[:-1], models)}
try:
    list(runner.try_mutants(mutants[-1:], models))
except (ValueError, OSError) as error:
    found["no such line"] = str(error)
print(json.dumps(found))
"""


@functools.cache
def handwritten_mutants() -> tuple[Mutant, ...]:
    return tuple(rule.mutant() for rule in HANDWRITTEN_RULES)


@functools.cache
def draws() -> tuple[Mutant, ...]:
    return tuple(draw_mutants())


@functools.cache
def possible() -> tuple[Mutant, ...]:
    return tuple(all_mutants())


def try_sample(*names: str) -> dict[str, str]:
    """Return the check that caught each of a sample, tried on one small model, in a process whose imports the harness
    can undo."""
    command = [sys.executable, "-c", SAMPLE, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


EXPECTED_KILLS = {
    "rollout in reverse": "vit: attention_weights: rollout of '' after layer 1 is off by",
    "a softmax of half the logits": "vit: predictions: probabilities",
    "ten thousand times the rounding": "vit: proof_sensitivity: 1.001 times the equation of step 'patches' is",
    "the crop one pixel off": "is not in the middle of a photo",
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "names", [("ten thousand times the rounding",), pytest.param(tuple(EXPECTED_KILLS), marks=pytest.mark.sweep)]
)
def test_a_mutant_is_caught_by_the_check_that_is_there_for_it_and_none_is_not(names):
    found = try_sample(*names)
    assert [name for name in names if EXPECTED_KILLS[name] not in found[name]] == []
    assert found["no end"] == "the process ended with status 7" and found["no mutant"] == ""
    assert found["no such line"]


def test_there_are_enough_and_each_can_be_applied():
    assert len(HANDWRITTEN_RULES) >= 60 and len({mutant.name for mutant in HANDWRITTEN_RULES}) == len(HANDWRITTEN_RULES)
    for mutant in (*handwritten_mutants(), *draws()[::5]):
        changed = mutant.apply()
        assert changed != mutant.text()
        if mutant.file.endswith(".py"):
            compile(changed, mutant.file, "exec")


@pytest.mark.sweep
def test_those_that_are_drawn_depend_on_the_seed_alone():
    assert draw_mutants() == draw_mutants() and len(draw_mutants()) == 200 and draw_mutants(seed=1) != draw_mutants()
    kinds = {mutant.name.split(":")[0] for mutant in draw_mutants()}
    assert kinds == {"sign", "index", "comparison", "constant", "arguments", "order"}


def test_what_does_not_stand_there_is_an_error():
    for old, count in (("softmax(scores / 3)", "0 times"), ("import", r"\d+ times")):
        with pytest.raises(
            ValueError,
            match=f"'x': {old!r} stands {count} in tracer/spec/results.py, expected once".replace("(", r"\(").replace(
                ")", r"\)"
            ),
        ):
            Mutant("x", "tracer/spec/results.py", old, "y").apply()


def test_the_copy_differs_in_one_file(tmp_path):
    mutant = next(mutant for mutant in handwritten_mutants() if mutant.file == "tracer/capture/score_path.py")
    _copy_project(tmp_path, mutant)
    paths = [path.relative_to(ROOT) for folder in ("tracer", "pages") for path in (ROOT / folder).rglob("*.py")]
    changed = [path.as_posix() for path in paths if (tmp_path / path).read_text() != (ROOT / path).read_text()]
    assert changed == [mutant.file]


def test_only_models_that_run_its_line_are_asked():
    mutant = next(mutant for mutant in handwritten_mutants() if mutant.name == "the anomaly without its root")
    assert Model("mae", {}, lines={mutant.file: {mutant.line}}).runs(mutant)
    assert not Model("vit", {}, lines={mutant.file: {1}}).runs(mutant)
    card = next(mutant for mutant in handwritten_mutants() if mutant.file == "tracer/models/weights/vit.json")
    assert [Model("vit", {}).runs(card), Model("vit", {"D": 6}).runs(card), Model("mae", {}).runs(card)] == [1, 0, 0]


def test_the_report_names_survivors_and_the_bar():
    one, other = (Mutant(name, "tracer/models/vit.py", "", "") for name in ("soup", "salt"))
    caught, survived = Trial(one, "vit: step 'x' is off", "vit", 1), Trial(other, tried=3)
    assert reports.format_trial(caught).endswith("\n    vit: step 'x' is off")
    assert reports.format_trial(survived).endswith("SURVIVED 3 models and files of tests")
    for count, enough in ((18, False), (19, True)):
        drawn = [("drawn", caught)] * count
        assert reports.summarize([("listed", caught), *drawn, ("drawn", survived)])[1] is enough
    said, enough = reports.summarize([("listed", caught), ("listed", survived)])
    assert said == ["1 of 2 mutants that are listed were caught; at least 100% have to be."] and not enough
    assert not reports.summarize([("drawn", survived)])[1]
    with pytest.raises(ValueError, match="no mutant is called 'soap'"):
        reports.select_mutants(["soap"], 0)


@pytest.mark.sweep
def test_a_place_has_all_that_can_be_drawn_there():
    mutant = draws()[0]
    _, found = reports.select_mutants([f"{mutant.file}:{mutant.line}"], 0)
    assert mutant in found and {(one.file, one.line) for one in found} == {(mutant.file, mutant.line)}
    assert len(found) >= sum((one.file, one.line) == (mutant.file, mutant.line) for one in draws())
    with pytest.raises(ValueError, match="expected a name, a file or FILE:LINE of one"):
        reports.select_mutants([f"{mutant.file}:100000"], 0)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nowhere/*.py", "'nowhere/\\*.py', which matches no file"),
        ("shapes/probes.py:Nobody", "Nobody of tracer/shapes/probes.py, which has no such name"),
    ],
)
def test_what_mutants_are_drawn_from_has_to_be_there(monkeypatch, pattern, message):
    monkeypatch.setattr("tests.mutation.random_mutants.FILES", (pattern,))
    with pytest.raises(ValueError, match=message):
        all_mutants()


def test_every_mutant_that_can_be_drawn_changes_something():
    assert all(mutant.new != f"({mutant.old})" for mutant in possible())


def test_a_survivor_that_is_harmless_says_why(monkeypatch):
    mutant = draws()[0]
    monkeypatch.setitem(
        reports.HARMLESS, (qualified_name(mutant.file, mutant.line), mutant.name, ""), "it is never read"
    )
    assert reports.format_trial(Trial(mutant, tried=2)).endswith(
        "SURVIVED 2 models and files of tests; harmless: it is never read"
    )
    assert "harmless" not in reports.format_trial(Trial(handwritten_mutants()[0]))


def test_what_is_called_harmless_can_be_drawn():
    for within, name, part in reports.HARMLESS:
        same = [one for one in possible() if one.name == name and part in _line(one)]
        assert any(_within(one, within) for one in same), (within, name, part)


def _within(mutant: Mutant, name: str) -> bool:
    return is_inside(tuple(qualified_name(mutant.file, mutant.line).split(".")), name)


def _line(mutant: Mutant) -> str:
    return mutant.text().splitlines()[mutant.line - 1]


RULES = (
    (code("x", {"Plus($a, $a)": "$a"}), "'x': 'Plus($a, $a)' matches nothing; expected one place"),
    (code("x", {"torch.cat($x)": "$x"}, within="Nobody"), "'x': 'torch.cat($x)' within Nobody matches nothing"),
    (code("x", {"return $x": "$x"}), "'return $x' matches tracer/"),
    (text("x", {"the": "a"}), "'x': 'the' matches tracer/"),
    (text("x", {"Cosines lie": "a", "model width: num": "b"}), "'x' matches in several files: tracer/"),
    (raw("x", "vit.json", {"gibt es nicht": "y"}), "'x': 'gibt es nicht' matches nothing; expected one place"),
)


@pytest.mark.parametrize(("rule", "message"), RULES, ids=[message for _, message in RULES])
def test_a_rule_that_matches_nothing_or_several_places_is_an_error(rule: Rule, message: str):
    with pytest.raises(ValueError, match="rule 'x'") as error:
        rule.mutant()
    assert message in str(error.value)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Project of one file, which a test writes."""
    for folder in ("tracer", "pages"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(rules, "ROOT", tmp_path)
    monkeypatch.setattr("tests.mutation.ROOT", tmp_path)
    for cache in (rules._source, rules._files, rules._places, mutation._read):
        cache.cache_clear()
    yield tmp_path
    for cache in (rules._source, rules._files, rules._places, mutation._read):
        cache.cache_clear()


CODE = """
class Norm:
    def run(self, x):
        \"\"\"Never x / x.sum(dim=-1), as in "one two".\"\"\"
        y = x.exp()
        return y / y.sum(dim=-1, keepdim=True)

    def says(self, x):
        return f"{x}: one " f"{{two}}"

    def other(self, x):
        return self.run(x, mode="a", scale=x)
"""


@pytest.mark.parametrize(
    ("rule", "new"),
    [
        (code("x", {"$y / $y.sum(*$a, dim=-1, **$b)": "$y"}), "return (y)"),
        (code("x", {"$y.sum(dim=-1, **$b)": "$y.sum(dim=-2, **$b)"}, "Norm.run"), "y / (y.sum(dim=-2, keepdim=True))"),
        (code("x", {"return $x / $y": "return $y"}), "return y.sum(dim=-1, keepdim=True)"),
        (code("x", {"$f($x, scale=$s, **$rest)": "$f($x, **$rest)"}), "(self.run(x, mode='a'))"),
        (text("x", {"one {two": "one {three"}), "(f'{x}: one {{three}}')"),
        (text("x", {"one": "1", "two": "2"}), "(f'{x}: 1 {{2}}')"),
    ],
)
def test_a_rule_finds_its_place_by_structure(project, rule, new):
    for path in ("tracer/a.py", "pages/deep/b.py"):  # wherever it is
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(CODE)
        changed = rule.mutant()
        assert changed.file == path and new in changed.apply()
        compile(changed.apply(), path, "exec")
        (project / path).unlink()
        for cache in (rules._source, rules._files, rules._places, mutation._read):
            cache.cache_clear()


def test_a_rule_for_a_file_that_is_not_python_minds_no_white_space(project):
    (project / "pages" / "x.js").write_text("if (a) {\n    show(map.open[row *\n keys]);\n}")
    changed = raw("x", "x.js", {"map.open[row * keys]": "map.open[keys * row]"}, ["test_browser_x.py"]).mutant()
    assert changed.apply() == "if (a) {\n    show(map.open[keys * row]);\n}" and changed.line == 2
    assert changed.tests == ("test_browser_x.py",)


@pytest.mark.sweep
def test_a_mutant_in_a_script_is_tried_by_the_tests_that_it_names(project, monkeypatch):
    (project / "pages" / "x.js").write_text("draw(row)")
    (project / "tests").mkdir()
    (project / "tests" / "test_x.py").write_text(
        "from pathlib import Path\nimport pytest\n"
        "text = (Path(__file__).resolve().parents[1] / 'pages' / 'x.js').read_text()\n"
        "def test_rows():\n    assert 'row' in text\n"
        "    assert not any(one.is_symlink() for one in Path(__file__).parents[1].iterdir())\n"
        "def test_nothing():\n    pytest.skip('no browser')\n"
    )
    monkeypatch.setattr(runner, "ROOT", project)
    monkeypatch.setattr(runner, "TESTS", project / "tests")
    changes, harmless = {"draw(row)": "draw(column)"}, {"draw(row)": "draw(row );"}
    both = [raw("x", "x.js", one, ["test_x.py::test_rows"]).mutant() for one in (changes, harmless)]
    found, missed = runner.try_mutants(both, [])
    assert "test_rows" in found.caught and found.model == "test_x.py::test_rows" and missed.caught == ""
    assert reports.format_trial(missed) == "pages/x.js:1  x\n    SURVIVED 1 models and files of tests"
    with pytest.raises(ValueError, match=r"test_x.py::test_nothing did not run: "):
        list(runner.try_mutants([raw("x", "x.js", changes, ["test_x.py::test_nothing"]).mutant()], []))


@pytest.mark.sweep
def test_the_nearest_tests_are_those_that_import_a_file():
    assert "figures/test_figures.py" in find_tests("tracer/figures/tensors.py")
    assert "record/test_cost_scaling.py" in find_tests("tracer/figures/op_tables.py")  # by way of its page
    assert "lessons/test_positions.py" in find_tests("tracer/lessons/positions/encodings.py")
    assert find_tests("tracer/models/weights/vit.json") == () and not any(
        "browser" in one for one in find_tests("app.py")
    )
    assert is_verified("tracer/expr/norms.py") and not is_verified("pages/server/browser_requests.py")
