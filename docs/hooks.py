"""Hooks of MkDocs: pages of the repository's root join the site, and equations become MathML."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tracer.export.to_html import equation

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config) -> Files:
    """Add the pages of the root to those of docs/."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Return a page whose links fit the site, with its equations as MathML, which browsers draw without scripts."""
    markdown = markdown.replace("](docs/", "](").replace("](../", "](")
    return re.sub(r"^```math\n(.*?)\n```$", lambda block: _mathml(block[1]), markdown, flags=re.MULTILINE | re.DOTALL)


def _mathml(latex: str) -> str:
    """Return the lines of an equation array as MathML. PluginError for a line that has none."""
    lines = latex.removeprefix("\\begin{aligned}\n").removesuffix("\n\\end{aligned}").split(" \\\\\n")
    drawn = [equation(line.replace(" &= ", " = ", 1)) for line in lines]
    if not all(line.startswith("<math") for line in drawn):
        raise PluginError(f"a line of this block has no MathML: {latex}")
    return "\n\n".join(f"<p>{line}</p>" for line in drawn)
