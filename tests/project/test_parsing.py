"""Source is parsed in one place, by one thread at a time, and not while a visitor waits."""

import ast
import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamlit.testing.v1 import AppTest

import app
from pages.state import page_registry
from tests.project.test_architecture import APP, LIBRARY, ROOT
from tracer.symbols import notation
from tracer.utils import files

SOURCE = Path(notation.__file__).read_text(encoding="utf-8")


def test_threads_that_parse_at_once_all_get_their_tree():
    """A collection in one parser lets another thread in, and CPython 3.11 then takes their depths for each other's."""
    before, threshold = gc.callbacks[:], gc.get_threshold()
    gc.callbacks[:] = [lambda phase, info: time.sleep(0.0005)]
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(8) as threads:
            trees = list(threads.map(lambda _: ast.dump(files.parse(SOURCE)), range(32)))
    finally:
        gc.callbacks[:] = before
        gc.set_threshold(*threshold)
    assert len(set(trees)) == 1


def test_all_that_is_parsed_is_parsed_in_one_place():
    where = [path for path in (*LIBRARY, *APP) if "ast.parse(" in path.read_text(encoding="utf-8")]
    assert where == [ROOT / "tracer" / "utils" / "files.py"]


def test_no_source_is_parsed_and_no_folder_listed_at_a_rerun(monkeypatch):
    at = AppTest.from_file(app.__file__, default_timeout=120).run()
    asked = []

    def watch(name, does):
        def asks(*given, **more):
            asked.append((name, given))
            return does(*given, **more)

        return asks

    for where, name in ((ast, "parse"), (os, "listdir"), (os, "scandir"), (Path, "read_text"), (Path, "read_bytes")):
        monkeypatch.setattr(where, name, watch(name, getattr(where, name)))
    at.run()
    own = [("scandir", (page_registry.PAGES,))]  # AppTest begins each run as if it were the first of a fresh server
    assert not at.exception and asked == own
