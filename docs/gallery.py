"""Write the gallery, docs/gallery.md, from what `verify --zoo` reports.

    python -m tracer verify --zoo --json | python -m docs.gallery
    python -m tracer verify --zoo hf:gpt2 --json | python -m docs.gallery    # renews this row alone

Rows of models that are not in the report stay as they are.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tracer.verify import small
from tracer.verify.surveys import FIELDS

GALLERY = Path(__file__).with_name("gallery.md")
GALLERY_MODELS = ("hf:llama", "torchvision:vit_b_32", "hf:mixtral", "hf:mamba")
"""Models of which the first block is printed."""
HEAD = """# Gallery

Small models of all kinds, with random weights. Each textbook was derived from one run and executed on its tensors.
`python -m tracer verify --zoo --json | python -m docs.gallery` wrote this page.

- **steps**: the lines of the textbook, all blocks counted; **verified**: those whose equation gave what ran.
- **kernels**: steps that have no formula and run PyTorch's own kernel again.
- **ops**: operations that compute something, and the share of them that a step covers.
- **sizes**: dimensions that change with the input, and the share of them that has a formula.
- **error**: the largest max|equation − traced| / max|traced| of a step.
"""
COLUMNS = f"| model | steps | verified | kernels | ops | covered | sizes | solved | error |\n|---{'|--:' * 8}|"


def main() -> None:
    """Read a report from standard input and write the gallery."""
    rows = {report["name"]: row(report) for report in json.load(sys.stdin)}
    known = re.findall(r"^\| `([^`]+)` \|.*$", text := GALLERY.read_text() if GALLERY.exists() else "", re.MULTILINE)
    kept = dict(zip(known, re.findall(r"^\| `[^`]+` \|.*$", text, re.MULTILINE), strict=True))
    GALLERY.write_text(page({**kept, **rows}, {name: block(name) for name in GALLERY_MODELS}), encoding="utf-8")


def row(report: Mapping) -> str:
    """Return the row of a report."""
    name, reason = report["name"], report["reason"]
    if reason:
        return f"| `{name}` | did not run: {reason.replace('|', ' ')} | | | | | | | |"
    covered, solved = (share(*map(report.get, pair)) for pair in (("covered", "computing"), ("solved", "sizes")))
    counts = " | ".join(str(report[key]) for key in ("steps", "verified", "kernels", "computing"))
    return f"| `{name}` | {counts} | {covered} | {report['sizes']} | {solved} | {report['error']:.0e} |"


def share(part: int, whole: int) -> str:
    """Return a share in percent, rounded down, so that 100 % means all."""
    return f"{100 * part // whole if whole else 100} %"


def block(name: str) -> str:
    """Return the steps of the first block of a model as one equation array."""
    steps = [step for step in small(name).trace(prove=False).steps if step.layer == 0]
    lines = [step.latex.replace(" = ", " &= ", 1) for step in steps]
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


def page(rows: Mapping[str, str], blocks: Mapping[str, str]) -> str:
    """Return the whole page."""
    counts = [[int(cell) for cell in re.findall(r"(?<=\| )\d+(?= \|)", each)[:2]] for each in rows.values()]
    steps, verified = (sum(count[i] for count in counts if count) for i in range(2))
    parts = [HEAD, f"All together: {len(rows)} models, {steps} steps, {verified} of them verified.\n"]
    for field, names in FIELDS.items():
        table = "\n".join(rows[name] for name in names.split() if name in rows)
        parts.append(f"## {field.capitalize()}\n\n{COLUMNS}\n{table}\n" if table else "")
    parts.append("## First blocks\n")
    parts += [f"### {name}\n\n```math\n{latex}\n```\n" for name, latex in blocks.items()]
    return "\n".join(filter(None, parts))


if __name__ == "__main__":
    main()
