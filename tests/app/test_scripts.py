"""Scripts of the pages and of the film, as source text."""

import re
from pathlib import Path

import pytest

from tests.support.serving import ROOT
from tracer.figures import film, scripts

SCRIPTS = sorted(path for folder in ("pages", "tracer") for path in (ROOT / folder).rglob("*.js"))
ASSIGNED_HANDLER = re.compile(r".*\.on[a-z]+ *=(?!=) *(?P<handler>.*)")  # the last of a chain
BLOCK = re.compile(r"(?:async )?(?:\(.*?\)|\w+) => \{$")


def returning(script: str) -> list[str]:
    """Return the handlers that are not functions with a body in braces: the result of such a one may cancel the
    event."""
    handlers = [match["handler"] for match in map(ASSIGNED_HANDLER.search, script.splitlines()) if match]
    return [handler for handler in handlers if not BLOCK.match(handler)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_handler_gives_back_what_its_expression_gives(path):
    script = path.read_text(encoding="utf-8")
    assert returning(script) == []
    assert not re.search(r"\bon(?:key|click|pointer|input|change|toggle)\w*: ", script)


def test_such_handlers_are_found():
    trap = 'find(".map").onkeydown = (event) => event.key === "Escape" && choose({ pinned: false });'
    assert returning(trap) and returning("a.onclick = move;") and returning("a.oninput = a.onchange = () => draw();")
    assert not returning("a.oninput = a.onchange = ({ target }) => {") and not returning("if (a.onclick === b) {")


IMPORTED = re.compile(r'^import \{ ([\w, ]+) \} from "([./\w-]+)";$', re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


def test_modules_are_joined_behind_those_whose_exports_they_import_and_use():
    paths = [scripts.FOLDER / f"{name}.js" for name in film.SHARED]
    paths += [film.PLAYER / f"{name}.js" for name in film.MODULES]
    assert {*paths} == {path for folder in (scripts.FOLDER, film.PLAYER) for path in folder.rglob("*.js")}
    known: dict[Path, set[str]] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.count("\nimport ") == len(IMPORTED.findall(text)), path
        for names, source in IMPORTED.findall(text):
            for name in names.split(", "):
                assert name in known[(path.parent / source).resolve()], f"{path.name} imports {name} of {source}"
                assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{path.name} never uses {name}"
        known[path.resolve()] = set(EXPORTED.findall(text))
