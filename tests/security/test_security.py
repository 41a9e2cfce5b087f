"""SECURITY.md: every measure and every attack names its test, and all names exist."""

import ast
import re

import pytest

from tests.support.serving import ROOT
from tracer.cli.commands.app import settings

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
MAKE = (ROOT / "Makefile").read_text(encoding="utf-8")


def rows(*header: str) -> list[list[str]]:
    """Return the rows of the table with this header."""
    _, _, table = TEXT.partition(f"| {' | '.join(header)} |\n")
    lines = table.split("\n\n")[0].splitlines()[1:]
    return [line.strip("| ").split(" | ") for line in lines]


def missing(named: str) -> str:
    """Return the tests, files or commands named between backticks that do not exist; empty where all do."""
    command, _, rest = named.partition(" ")
    if command == "make":
        return "" if re.search(rf"^{rest.split()[0]}:", MAKE, re.MULTILINE) else named
    path, _, function = named.partition("::")
    if not (ROOT / path).is_file() or not function:
        return "" if (ROOT / path).is_file() else named
    defined = [part.name for part in ast.parse((ROOT / path).read_text()).body if isinstance(part, ast.FunctionDef)]
    return "" if function in defined else named


MEASURES, ATTACKS = rows("against", "measure", "test"), rows("attack", "test")


def test_the_tables_are_read_whole():
    assert len(MEASURES) >= 26 and {len(row) for row in MEASURES} == {3}
    assert len(ATTACKS) == 13 and {len(row) for row in ATTACKS} == {2}


@pytest.mark.parametrize("row", MEASURES + ATTACKS, ids=lambda row: row[0][:40])
def test_what_a_row_names_is_there(row):
    named = re.findall(r"`([^`]+)`", row[-1])
    assert named and [one for one in map(missing, named) if one] == []


def test_what_is_not_there_is_missed():
    for named in ("tests/test_gone.py", "tests/security/test_attacks.py::test_gone", "make gone"):
        assert missing(named) == named
    assert not missing("tests/security/test_attacks.py") and not missing("make attacks") and not missing("compose.yaml")


def test_every_attack_names_a_test_and_not_only_a_file():
    assert all("::" in named for row in ATTACKS for named in re.findall(r"`([^`]+)`", row[-1]))


def test_what_streamlits_own_command_takes_is_what_is_said():
    said = re.search(r"`streamlit run app.py` serves the app, too, but takes messages of (\d+) MB", TEXT)
    stated = settings(ROOT / ".streamlit" / "config.toml", ())
    assert said and stated["STREAMLIT_SERVER_MAX_MESSAGE_SIZE"] == said[1]
