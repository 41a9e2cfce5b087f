"""Mutants drawn from a seed: a sign, an index, a comparison, a constant or the order of two arguments is changed.

Only where numbers, shapes and formulas are made, and not in what is only said when input is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from hashlib import sha256

from tests.mutation import ROOT, Mutant
from tests.mutation.rules import qualified_name
from tracer.utils.files import lines, parse

FILES = (
    "inputs/images.py:Crop,centre_crop,patch_boxes,_between,to_array",
    "attention/__init__.py",
    "attention/head_effects.py",
    "attention/masks.py",
    "attention/textbook_claims.py",
    "capture/score_path.py:"
    "closes,is_windowed,hides,pick_rows,scores_rows,_apart,softmax_columns,softmax_rows,"
    "own_columns,sinks,_cat,_heads,_argument",
    "expr/__init__.py",
    "expr/arithmetic.py",
    "expr/convolutions.py",
    "expr/embeddings.py",
    "expr/error_bounds.py",
    "expr/function_call.py",
    "expr/images.py",
    "expr/index_sets.py",
    "expr/indexing.py",
    "expr/mixture_of_experts.py",
    "expr/node.py",
    "expr/norms.py",
    "expr/rearrangements.py",
    "expr/recurrence.py",
    "expr/reductions.py",
    "lowering/rewrites.py:"
    "_distances,_is_of_pairs,_at_distance,_by_distance,"
    "_first_of,_rows_at,_scaled_by,_prefix,_of_channels,_frozen_norm",
    "models/__init__.py",
    "models/clip.py",
    "models/llama.py",
    "models/mae.py",
    "models/nanogpt.py",
    "models/segmenter.py",
    "models/transformer.py",
    "models/vit.py",
    "models/vit_note.py",
    "models/vit_text.py",
    "shapes/__init__.py",
    "shapes/alignment.py",
    "shapes/probes.py",
    "shapes/solver.py:"
    "SliceBounds,flatten,CallIndex,find_changing,solve_number,_solve_signed,_solve_float,"
    "_as_integers,_solve_monomial,_scale_formula,fits,is_near,solve_padding,solve_slice,"
    "clamp_slice,solve_bound,Solver,common_divisors,equal_at,base_form,_drop_rounding,_text,"
    "_factor,_compile,names_of,value_of,evaluator",
    "shapes/variation.py",
    "spec/blocks.py",
    "spec/preparation.py",
    "spec/results.py",
    "symbols/axes.py:parse_pattern,_parse_side,factor_sizes,normalise_axis,align_axes,split_axis,merge_axes,read_axes",
    "symbols/cost.py",
    "textbook/derivation.py:StepOrigin,Line,opaque,DerivedStep,owners",
    "tracing/__init__.py",
    "tracing/proofs.py:"
    "Proof,relative_error,difference,prove,compare,hides,compute_bounds,_Leaf,_compare,"
    "_out_of_range,apply_proof,weights,stacks,weight,KeyedTensors,Values,size_at,execute_exactly,same_size,"
    "size_matcher,run_size_matcher,verified_shape",
    "tracing/records.py:OpSequence,RunCost,account,_ops,tensor_records,part_of,limit_note",
    "utils/torch_state.py:Difference,identical,_bits,relative_difference,first_beyond,_largest,_scale",
)
"""Patterns below the package; after a colon the only functions and classes that count."""

FREE_ARGUMENTS = ("strict", "maxsize", "sizes", "probes", "runs", "settings", "tiny", "samples")
"""Arguments in which another value is another choice and no lie: what has to hold of it, and which sizes are tried."""

COMMUTATIVE_FUNCTIONS = ("transpose", "equal", "min", "max", "same", "has", "total")
"""Functions whose first two arguments have no order."""

INITIALIZERS = ("Parameter", "normal_")
"""What gives the weights of a net their first values: no run shows these; others replace them."""

SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
SIGNS |= {ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARISONS |= {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}


def draw_mutants(count: int = 200, seed: int = 0) -> list[Mutant]:
    """Draw `count` of all mutants of these kinds, no two at one position.

    Those come first whose hash of the seed, the function and the line is the lowest: a change elsewhere draws them
    again.
    """
    return sorted(all_mutants(), key=lambda mutant: _hash(mutant, seed))[:count]


def all_mutants() -> list[Mutant]:
    """Return all mutants that can be drawn, no two of one expression."""
    found = {(file, mutant.at, mutant.old): mutant for file, names in _files() for mutant in _mutants_of(file, names)}
    return list(found.values())


def _hash(mutant: Mutant, seed: int) -> bytes:
    text = mutant.text()
    line = text[text.rfind("\n", 0, mutant.at) + 1 : text.find("\n", mutant.at)].strip()
    return sha256(f"{seed} {qualified_name(mutant.file, mutant.line)} {line} {mutant.name}".encode()).digest()


def _files() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the files that FILES lists, and the only names in each that count. Raise ValueError where a pattern matches
    nothing."""
    for pattern in FILES:
        pattern, _, names = pattern.partition(":")
        paths = sorted((ROOT / "tracer").glob(pattern))
        if not paths:
            raise ValueError(f"mutants are drawn from {pattern!r}, which matches no file of the package")
        for path in paths:
            yield path.relative_to(ROOT).as_posix(), tuple(filter(None, names.split(",")))


def _mutants_of(file: str, names: tuple[str, ...]) -> Iterator[Mutant]:
    text = (ROOT / file).read_text(encoding="utf-8")
    tree = parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    roots = [node for node in tree.body if not names or getattr(node, "name", "") in names]
    if missing := {*names} - {getattr(node, "name", "") for node in roots}:
        raise ValueError(f"mutants are drawn from {', '.join(sorted(missing))} of {file}, which has no such name")
    for node in (inner for root in roots for inner in _mutable_expressions(root)):
        for what, new in _mutate(node):
            line = text[starts[node.lineno - 1] : starts[node.lineno]]
            at = starts[node.lineno - 1] + len(line.encode()[: node.col_offset].decode())
            below = lines(node)[-1]
            last = text[starts[below - 1] : starts[below]]
            end = starts[below - 1] + len(last.encode()[: node.end_col_offset].decode())
            old, made = text[at:end], ast.unparse(ast.fix_missing_locations(new))
            yield Mutant(f"{what}: {_shorten(old)} → {_shorten(made)}", file, old, f"({made})", at)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _mutable_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in a piece of code that compute results on screen: not annotations, decorators, default
    cache sizes, messages, or conditions that refuse input."""
    if isinstance(node, ast.If) and any(isinstance(inner, ast.Raise) for inner in node.body):
        rest = node.orelse
    elif isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        rest = [*node.body, *getattr(getattr(node, "args", None), "defaults", ())]
    elif (isinstance(node, ast.keyword) and node.arg in FREE_ARGUMENTS) or (
        isinstance(node, ast.Call) and getattr(node.func, "attr", "") in INITIALIZERS
    ):
        return
    elif isinstance(node, ast.AnnAssign):
        rest = [node.value] if node.value else []
    else:
        rest = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.expr):
        yield node
    for inner in rest:
        yield from _mutable_expressions(inner)


def _mutate(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the mutations of an expression, and the kind of each."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if (
            type(op) in SIGNS and not _is_text(left) and not _is_text(right)
        ):
            yield "sign", ast.BinOp(left, SIGNS[type(op)](), right)
            if isinstance(op, (ast.Sub, ast.Div, ast.MatMult)):
                yield "order", ast.BinOp(right, op, left)
        case ast.BinOp(left=left, op=ast.MatMult() as op, right=right):
            yield "order", ast.BinOp(right, op, left)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "sign", operand
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield "index", ast.UnaryOp(ast.USub(), ast.Constant(value + 1))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield "comparison", ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(value * 2 or 1.0)
        case ast.Call(func=func, args=[first, second, *rest], keywords=keywords) if not any(
            isinstance(argument, ast.Starred) for argument in (first, second)
        ):
            name = getattr(func, "attr", getattr(func, "id", ""))
            if (
                name not in COMMUTATIVE_FUNCTIONS
                and ast.dump(first) != ast.dump(second)
                and not (_is_text(first) or _is_text(second))
            ):
                yield "arguments", ast.Call(func, [second, first, *rest], keywords)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
