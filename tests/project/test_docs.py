"""Documents: their links and names exist, their quotes are exact, and their commands and programs run."""

import ast
import contextlib
import dataclasses
import functools
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from math import inf
from pathlib import Path

import pytest

import tracer
from tests.support.serving import ROOT
from tracer import cli, models
from tracer.diagnostics.failures.explanation import Fix
from tracer.export.to_json import FIELDS
from tracer.record import Step
from tracer.utils.errors import BOUNDS
from tracer.verify.surveys import NAMES

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
FOLDERS = ("tracer", "pages", "tests", "docs", "hosting", ".streamlit", ".ci")
GALLERY = "docs/gallery.md"
pages = pytest.mark.parametrize("name", TEXTS)


def prose(name: str) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", TEXTS[name], flags=re.MULTILINE | re.DOTALL)


def code(name: str) -> list[str]:
    """Return the texts in backticks of a document."""
    return re.findall(r"`([^`\n]+)`", prose(name))


def blocks(name: str, language: str) -> list[str]:
    """Return the blocks of code of a language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXTS[name], flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken(name: str, text: str) -> list[str]:
    """Return the relative links of a document that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        if re.match("[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pages
def test_every_relative_link_leads_to_a_file_and_a_heading(name):
    assert broken(name, prose(name)) == []


def test_a_broken_link_is_found():
    text = "[a](README.md) [b](nowhere.md) [c](ARCHITECTURE.md#glossary) [d](ARCHITECTURE.md#nothing)"
    assert broken("README.md", text) == ["nowhere.md", "ARCHITECTURE.md#nothing"]


@pages
def test_every_file_that_is_named_exists(name):
    """A name such as `tests/test_x.py::test_y` names a function or a class of that file, too."""
    for named in code(name):
        path, _, function = named.partition("::")
        bare = re.fullmatch(r"\w+\.py", path)
        if not bare and (path.split("/")[0] not in FOLDERS or "/" not in path or " " in path):
            continue
        files = list(ROOT.glob(path.rstrip("/")))
        if bare:
            files += [file for folder in FOLDERS[:4] for file in (ROOT / folder).rglob(path)]
        assert files, named
        if function:
            tree = ast.parse(files[0].read_text(encoding="utf-8"))
            definitions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
            assert function in {node.name for node in definitions}, named


@pages
def test_every_name_of_the_library_exists(name):
    named = [each for each in code(name) if re.fullmatch(r"tracer(\.\w+)+", each)]
    named += re.findall(r"^::: ([\w.]+)$", TEXTS[name], flags=re.MULTILINE)
    for dotted in named:
        value, *rest = dotted.split(".")
        value = import_module(value)
        for part in rest:
            with contextlib.suppress(ModuleNotFoundError):
                import_module(f"{value.__name__}.{part}")
            value = getattr(value, part)


def test_no_text_refers_to_a_document_that_readers_do_not_have():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a checkout of git")
    files = [ROOT / line for line in listed.stdout.splitlines()]
    there = {path.name for path in files}
    for path in files:
        if path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".js") and ROOT / "tests" not in path.parents:
            assert set(re.findall(r"[\w-]+\.md\b", path.read_text(encoding="utf-8"))) <= there, path


@pages
def test_every_command_is_one(name):
    """`python -m tracer …` has to parse, and `make …` has to be a target."""
    quoted = [*code(name), *(line for block in blocks(name, "sh") for line in block.splitlines())]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in (line.partition("  #")[0].strip() for line in quoted):
        words = command.partition("python -m tracer ")[2].partition(" | ")[0]
        if " " in words:
            cli.parser().parse_args(shlex.split(words))
        else:
            assert not words or words in cli.find_commands(), command
        if target := re.match(r"make (\w+)", command):
            assert re.search(rf"^{target[1]}:", makefile, flags=re.MULTILINE), command


@pytest.mark.parametrize("name", ["README.md", "docs/library.md"])
def test_the_python_of_a_document_runs(name, tmp_path, monkeypatch):
    """A comment `# prints …` says how a line that is printed begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracer, "load", functools.cache(tracer.load))  # its lines are derived once
    program, printed = "\n".join(blocks(name, "python")), io.StringIO()
    assert program
    names: dict = {}
    with contextlib.redirect_stdout(printed):
        exec(program, names)
    for line in re.findall(r"# prints (.+?)(?: …)?$", program, flags=re.MULTILINE):
        assert line in printed.getvalue()
    assert names["score"].computed == pytest.approx(names["score"].value, rel=1e-5)


def table(name: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading row that begins with a text."""
    rows = TEXTS[name].partition(f"\n{heading}")[2].splitlines()[2:]
    cut = next((i for i, row in enumerate(rows) if not row.startswith("|")), len(rows))
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[:cut]]


def test_the_bounds_of_a_server_are_those_that_hold():
    rows = {row[0].strip("`"): row[1:3] for row in table("docs/hosting.md", "| variable |")}
    bounds = {
        f"TRACER_{name.upper()}": ["none" if bound == inf else str(bound) for bound in (hosted, home)]
        for name, (home, hosted) in BOUNDS.items()
    }
    assert {name: row for name, row in rows.items() if name in bounds} == bounds
    names = {"MODELS", "HOST", "FRAMED_BY", "PREWARM", "RUN_PROCESS"}
    assert set(rows) - set(bounds) == {f"TRACER_{name}" for name in names}


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = {row[0].strip("`") for row in table("docs/library.md", "| extra |")}
    assert rows == {"none", *project["optional-dependencies"]}


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("| field of a step |", {*FIELDS[Step]}),
        ("| field of a fix |", {*(field.name for field in dataclasses.fields(Fix)), "caution"}),
    ],
)
def test_fields_of_json_are_those_that_are_written(heading, names):
    rows = [row[0] for row in table("docs/library.md", heading)]
    assert {name.strip("`") for row in rows for name in row.split(", ")} == names


def test_pages_and_models_are_those_of_the_app():
    titles = {
        re.search(r'^TITLE = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)[1]
        for path in (ROOT / "pages").glob("*.py")
    }
    assert {row[0].strip("*") for row in table("docs/teaching.md", "| page |")} == titles
    assert {row[0].strip("`") for row in table("docs/teaching.md", "| name |")} == set(models.names())


def test_the_readme_is_short_and_its_picture_small():
    assert len(TEXTS["README.md"].splitlines()) <= 130
    assert (ROOT / "docs" / "overview.webp").stat().st_size <= 200_000


def test_the_citation_has_the_version():
    assert f"\nversion: {tracer.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_picture_of_the_architecture_names_types_of_its_table():
    picture = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    types = re.findall(r'class="type">(\w+)<', picture)
    named = {each.rpartition(".")[2] for each in code("ARCHITECTURE.md")}
    assert len(types) == 5 and set(types) <= named


def test_every_page_of_the_docs_is_in_the_site():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert set(re.findall(r"(\S+\.md)$", nav, flags=re.MULTILINE)) == {
        *(path.name for path in (ROOT / "docs").glob("*.md")),
        *re.findall(r'"(\w+\.md)"', (ROOT / "docs" / "hooks.py").read_text(encoding="utf-8")),
    }


def test_the_gallery_has_all_of_the_zoo():
    assert set(re.findall(r"^\| `([^`]+)` \|", TEXTS[GALLERY], flags=re.MULTILINE)) == set(NAMES)


@pytest.mark.sweep
def test_the_gallery_is_what_its_command_writes(tmp_path):
    report = subprocess.run(
        [sys.executable, "-m", "tracer", "verify", "--zoo", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    sys.path.insert(0, str(ROOT))
    gallery = import_module("docs.gallery")
    rows = {each["name"]: gallery.row(each) for each in json.loads(report.stdout)}
    page = gallery.page(rows, {name: gallery.block(name) for name in gallery.PRINTED})
    written, stored = (re.sub(r"\d+e[-+]\d+", "…", text) for text in (page, TEXTS[GALLERY]))  # errors vary by machine
    assert written == stored
