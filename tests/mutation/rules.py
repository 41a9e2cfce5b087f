"""Rules for mutants: a pattern of the syntax tree and its replacement, wherever in the package it occurs.

A rule finds its place by structure and not by file or line, so it survives reformatting, a function that moves to
another file, and most renames:

    code("a softmax over queries", {"$x.sum(dim=-1, keepdim=True)": "$x.sum(dim=-2, keepdim=True)"}, within="Softmax")
    text("a wrong bound of GELU", {"between -0.17 and 0": "between -0.27 and 0"})
    raw("rows for columns", "mask.js", {"map.open[row * keys + key]": "map.open[key * keys + row]"}, tests=[…])

- `code` has Python patterns, an expression or a statement. `$x` is any expression (the same one wherever it stands
  twice), `f(*$rest)` any number of arguments, `f(**$options)` any other keyword arguments, `$x.$name` any attribute.
- `text` changes what a string says; docstrings don't count, and it does not matter how the string is broken into lines.
- `raw` changes a file that is not Python, such as JavaScript or JSON; any space stands for any white space. `tests`
  are the browser tests (files, or `FILE::TEST`) that have to catch it: they run beside a copy of the project, whose app
  they start. Without `tests`, `verify` of the model of that card does.

Each pattern has to match exactly once in `tracer/` and `pages/`, or within `within`: the qualified name of a function,
class or module-level name, as much of it as tells it from others ("run", "Softmax.run", "vit.SPEC"). Anything else is
an error that names the rule and the places. Several patterns in one rule are replaced at once.

mutmut and cosmic-ray were looked at instead. Both apply general operators everywhere (as `drawn.py` does) and run a
test command in a new process for each; neither can say "this very lie, here", which is what a listed mutant is.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from tests.mutation import ROOT, Mutant
from tracer.utils.files import parse

FOLDERS = ("tracer", "pages")
CHECKS = "tracer/verify/"
"""What looks for mutants is not where they are made."""

_META = "META_"
SKIPPED_FIELDS = ("ctx", "kind", "type_comment")


@dataclass(frozen=True)
class Rule:
    """A named mutation: the pattern, the replacement, its scope, and the browser tests that have to see it."""

    name: str
    kind: str
    edits: tuple[tuple[str, str], ...]
    within: str = ""
    files: str = "*.py"
    tests: tuple[str, ...] = ()

    def mutant(self) -> Mutant:
        """Return the change of one file. Raise ValueError where a pattern matches nothing, or several positions."""
        edits = [self._edit(old, new) for old, new in self.edits]
        files = {edit.file for edit in edits}
        if len(files) > 1:
            raise ValueError(f"rule {self.name!r} matches in several files: {', '.join(sorted(files))}; expected one")
        (file,) = files
        spans = _merge_edits(file, edits)
        text = _source(file)
        start, stop = spans[0][0], spans[-1][1]
        new, at = "", start
        for begin, end, replacement in spans:
            new, at = new + text[at:begin] + replacement, end
        return Mutant(self.name, file, text[start:stop], new, start, self.tests)

    def _edit(self, old: str, new: str) -> _Edit:
        """Return the one position that a pattern matches."""
        edits = list({"code": _code_edits, "text": _text_edits, "raw": _raw_edits}[self.kind](self, old, new))
        if len(edits) != 1:
            where = ", ".join(f"{edit.file}:{edit.line}" for edit in edits[:5]) or "nothing"
            inside = f" within {self.within}" if self.within else ""
            raise ValueError(f"rule {self.name!r}: {old!r}{inside} matches {where}; expected one place")
        return edits[0]


def code(name: str, edits: Mapping[str, str], within: str = "") -> Rule:
    """Return a rule that replaces expressions or statements of Python."""
    return Rule(name, "code", tuple(edits.items()), within)


def text(name: str, edits: Mapping[str, str], within: str = "") -> Rule:
    """Return a rule that replaces a piece of the content of a Python string."""
    return Rule(name, "text", tuple(edits.items()), within)


def raw(name: str, files: str, edits: Mapping[str, str], tests: Iterable[str] = ()) -> Rule:
    """Return a rule that replaces text in a file that is not Python, whose name or path ends as `files`."""
    return Rule(name, "raw", tuple(edits.items()), files=files, tests=tuple(tests))


class _Edit(NamedTuple):
    """Change of a file: a span, where `root` is None; else a node inside of `root`, and the function that builds its
    replacement."""

    file: str
    line: int
    root: ast.AST | None
    replacement: Any
    span: tuple[int, int] = (0, 0)


class _Place(NamedTuple):
    """A node of a file, the names of its enclosing scopes, and the outermost f-string around it, or itself."""

    node: Any
    scope: tuple[str, ...]
    root: Any


@lru_cache(maxsize=1024)
def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def _files(pattern: str) -> tuple[str, ...]:
    """Return the files below FOLDERS whose name or path ends so."""
    every = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file())
    names = (path.relative_to(ROOT).as_posix() for path in every)
    return tuple(
        name
        for name in names
        if not name.startswith(CHECKS) and (fnmatch(name.rpartition("/")[2], pattern) or fnmatch(name, f"*/{pattern}"))
    )


@lru_cache(maxsize=1024)
def _places(file: str) -> dict[type, list[_Place]]:
    """Yield every node of a file by its kind, except docstrings, annotations and imports."""
    module = tuple(part for part in file.removesuffix(".py").split("/") if part != "__init__")
    places: dict[type, list[_Place]] = {}
    for place in _walk(parse(_source(file)), module, None):
        places.setdefault(type(place.node), []).append(place)
    return places


def _candidate_files(rule: Rule) -> Iterator[str]:
    """Yield the files in which the scope of a rule may be."""
    for file in _files(rule.files):
        if all(name in file or name in _source(file) for name in rule.within.split(".")):
            yield file


def _walk(node: ast.AST, scope: tuple[str, ...], joined: ast.AST | None) -> Iterator[_Place]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope = (*scope, node.name)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        scope = (*scope, target.id) if isinstance(target, ast.Name) else scope
    elif isinstance(node, ast.JoinedStr):
        joined = joined or node
    if isinstance(node, (ast.expr, ast.stmt)):
        yield _Place(node, scope, joined or node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for inner in value if isinstance(value, list) else [value]:
            docstring = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)
            if isinstance(inner, ast.AST) and not docstring and not isinstance(inner, (ast.Import, ast.ImportFrom)):
                yield from _walk(inner, scope, joined)


@cache
def qualified_name(file: str, line: int) -> str:
    """Return the qualified name of the scope of a file's line: a function, a class or a module-level name."""
    statements = (place for kind, places in _places(file).items() if issubclass(kind, ast.stmt) for place in places)
    around = [place for place in statements if line in _lines(place.node)]
    innermost = max(around, key=lambda place: (place.node.lineno, place.node.col_offset), default=None)
    return ".".join(innermost.scope) if innermost else file.removesuffix(".py").replace("/", ".")


def _lines(node: Any) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def is_inside(scope: tuple[str, ...], within: str) -> bool:
    """Return whether nested names, from the outermost, contain those of a qualified name in a row."""
    names = tuple(within.split(".")) if within else ()
    return any(scope[i : i + len(names)] == names for i in range(len(scope) - len(names) + 1))


def _code_edits(rule: Rule, old: str, new: str) -> Iterator[_Edit]:
    pattern, replacement, words = _pattern(old), _pattern(new), _words(old)
    for file in _candidate_files(rule):
        source = _source(file)
        if not all(word in source for word in words):
            continue
        for node, scope, root in _places(file).get(type(pattern), ()):
            if is_inside(scope, rule.within):
                bound: dict[str, Any] = {}
                if _match(pattern, node, bound):
                    yield _Edit(file, node.lineno, root, (node, partial(_filled_for, replacement, bound)))


def _text_edits(rule: Rule, old: str, new: str) -> Iterator[_Edit]:
    for file in _candidate_files(rule):
        for node, scope, root in _places(file).get(ast.Constant, ()):
            if isinstance(node.value, str) and is_inside(scope, rule.within):
                for _ in range(node.value.count(old)):
                    yield _Edit(file, root.lineno, root, (node, partial(_reword, old, new)))


def _raw_edits(rule: Rule, old: str, new: str) -> Iterator[_Edit]:
    expression = r"\s*".join(map(re.escape, old.split()))
    for file in _files(rule.files):
        source = _source(file)
        for match in re.finditer(expression, source):
            yield _Edit(file, source.count("\n", 0, match.start()) + 1, None, new, match.span())


def _pattern(source: str) -> ast.expr | ast.stmt:
    """Return the tree of a pattern: an expression, or else a statement."""
    (statement,) = parse(re.sub(r"\$(\w+)", rf"{_META}\1", source)).body
    return statement.value if isinstance(statement, ast.Expr) else statement


@lru_cache(maxsize=1024)
def _words(source: str) -> frozenset[str]:
    """Return the names in a pattern that its matches have to contain."""
    tree = _pattern(source)
    names = {getattr(node, name, None) for node in ast.walk(tree) for name in ("id", "attr", "arg")}
    return frozenset(name for name in names if name and not name.startswith(_META))


def _meta(value: Any) -> str:
    """Return the name of the placeholder that a node or an identifier of a pattern is; empty where it is none."""
    value = value.value if isinstance(value, (ast.Starred, ast.Expr)) else value
    value = value.id if isinstance(value, ast.Name) else value
    return value.removeprefix(_META) if isinstance(value, str) and value.startswith(_META) else ""


def _match(pattern: Any, value: Any, bound: dict[str, Any]) -> bool:
    """Return whether a piece of code matches a pattern; note in `bound` the values of its placeholders."""
    name = _meta(pattern)
    if name and not isinstance(pattern, ast.Starred):
        known = bound.setdefault(name, value)
        return known is value or _equal_code(known, value)
    if isinstance(pattern, ast.Call) and isinstance(value, ast.Call):
        return (
            _match(pattern.func, value.func, bound)
            and _match(pattern.args, value.args, bound)
            and _match_keywords(pattern.keywords, value.keywords, bound)
        )
    if isinstance(pattern, ast.AST):
        if type(pattern) is not type(value):
            return False
        fields = (field for field in pattern._fields if field not in SKIPPED_FIELDS)
        return all(_match(getattr(pattern, field), getattr(value, field), bound) for field in fields)
    if isinstance(pattern, list):
        if pattern and isinstance(pattern[-1], ast.Starred) and _meta(pattern[-1]):
            bound[_meta(pattern[-1])] = value[len(pattern) - 1 :]
            pattern, value = pattern[:-1], value[: len(pattern) - 1]
        return len(pattern) == len(value) and all(_match(p, v, bound) for p, v in zip(pattern, value, strict=True))
    return type(pattern) is type(value) and pattern == value


def _match_keywords(pattern: list[ast.keyword], value: list[ast.keyword], bound: dict[str, Any]) -> bool:
    others = {keyword.arg: keyword for keyword in value}
    rest = next((keyword for keyword in pattern if keyword.arg is None and _meta(keyword.value)), None)
    for keyword in pattern:
        if keyword is not rest:
            counterpart = others.pop(keyword.arg, None)
            if counterpart is None or not _match(keyword.value, counterpart.value, bound):
                return False
    if rest:
        bound[_meta(rest.value)] = list(others.values())
    return bool(rest) or not others


def _equal_code(a: Any, b: Any) -> bool:
    """Return whether two pieces of code are equal, whether read or assigned."""
    dumped = [ast.dump(x).replace("Store()", "Load()") if isinstance(x, ast.AST) else x for x in (a, b)]
    return dumped[0] == dumped[1]


def _filled_for(replacement: ast.AST, bound: dict[str, Any], node: ast.AST) -> Any:
    """Return the replacement of a node."""
    return _substitute(replacement, bound)


def _reword(old: str, new: str, node: Any) -> ast.Constant:
    """Return the string with another text."""
    return ast.Constant(node.value.replace(old, new))


def _substitute(tree: Any, bound: dict[str, Any]) -> Any:
    """Return the replacement with the values of its placeholders."""
    name = _meta(tree)
    if name and not isinstance(tree, ast.Starred):
        return copy.deepcopy(bound[name])
    if isinstance(tree, list):
        filled: list[Any] = []
        for item in tree:
            spliced = item.value if isinstance(item, ast.keyword) and item.arg is None else item
            several = _meta(spliced) and isinstance(bound.get(_meta(spliced)), list)
            filled += copy.deepcopy(bound[_meta(spliced)]) if several else [_substitute(item, bound)]
        return filled
    if isinstance(tree, ast.AST):
        return type(tree)(**{field: _substitute(getattr(tree, field, None), bound) for field in tree._fields})
    return tree


def _merge_edits(file: str, edits: list[_Edit]) -> list[tuple[int, int, str]]:
    """Return the spans of a file that change, in order, and their new text; several changes of one string are one."""
    spans, by_root = [], {}
    for edit in edits:
        if edit.root is None:
            spans.append((*edit.span, edit.replacement))
        else:
            node, change = edit.replacement
            new = by_root.setdefault(id(edit.root), (edit.root, {}))[1]
            new[id(node)] = change(new.get(id(node), node))
    spans += [_unparse_with(file, root, new) for root, new in by_root.values()]
    return sorted(spans)


def _unparse_with(file: str, root: Any, new: dict[int, ast.AST]) -> tuple[int, int, str]:
    """Return the span of a node and its text with pieces of it replaced."""
    source = _source(file)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(source[starts[line - 1] : starts[line]].encode()[:column].decode())

    span = offset(root.lineno, root.col_offset), offset(root.end_lineno, root.end_col_offset)
    changed = copy.deepcopy(root, dict(new))  # of what is in its memo, a copy is what the memo says
    text = ast.unparse(ast.fix_missing_locations(changed))
    if isinstance(root, ast.expr):
        return (*span, f"({text})")
    return (*span, text.replace("\n", f"\n{' ' * root.col_offset}"))
