"""The five notes, row by row: each row of a table, item of a step list and displayed formula, and what reproduces it.

The rows are in `note_rows`, a file for each note, under the name of the run that they are looked up in (`RUNS`). A row
is `section | what the note says, in short | where | shape`. `where` lists, separated by semicolons:

- `step ID`: that step of the run, of the shape given, whose equation was executed
- `param PATH`, `input NAME`, `size NAME`: a parameter, an input, a size of the run, of the shape or value given
- `op NAME MODULE`: a call of that name that ran in that module, of the shape given
- `ran OP PLACE`: an op of PyTorch's that ran in that module or belongs to that step, from and to the shapes given
- `option NAME`: a choice that the model has
- `open NAME`: a model of that name, which goes on from here
- `prim OP NAME`: one of the primitives of op `OP`, from and to the shapes given
- `names NAMES`: functions that run the ops that ran
- `count NAME`: a number of parameters or ops, counted in `note_checks.py`
- `claim NAME`: the test `test_NAME` in `test_claims.py`
- `slip NAME`: the note and the run differ; the sentence is in `SLIPS`, its proof is a `test_slip_NAME`
- `outside NAME`: not a part of any model here, for the reason in `OUTSIDE`

`{query,key}` stands for both, `@` for the path of torchvision's first block. Shapes are in the run's symbols, axes of
size 1 left out; `N+1` is a formula, and `>` stands between the first tensor that an op takes and what it gives.
"""

from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A row of a note: what run it is looked up in, and where."""

    note: str
    run: str
    section: str
    text: str
    where: tuple[str, ...]
    shape: str


RUNS = {
    "nanogpt": ("nanogpt", {"V": 17, "T_max": 11, "D": 10, "h": 1, "d_ff": 23, "L": 2}, {"B": 3, "T": 7}),
    "nanogpt-separate": (
        "nanogpt",
        {"V": 17, "T_max": 11, "D": 10, "h": 1, "d_ff": 23, "L": 2, "tied": False},
        {"B": 3, "T": 7},
    ),
    "llama": (
        "llama",
        {"V": 17, "T_max": 11, "D": 24, "h": 3, "h_kv": 1, "d_ff": 23, "L": 2},
        {"B": 3, "T": 7},
    ),
    "vit-text": (
        "vit-text",
        {"H": 12, "W": 20, "P": 4, "V": 17, "T_max": 11, "D": 14, "h": 1, "d_ff": 23, "L": 2},
        {"B": 2, "T": 7},
    ),
    "vit-note": ("vit-note", {}, {}),
    "segmenter": ("segmenter", {"H": 224, "W": 224, "P": 16, "D": 768, "K": 10, "h": 12, "L": 1}, {}),
    "mae": ("mae", {"H": 12, "W": 20, "P": 4, "D": 16, "h": 2, "d_ff": 24, "L": 1, "L_dec": 1}, {}),
    "vit": ("vit", {"H": 12, "W": 20, "P": 4, "D": 12, "h": 3, "d_ff": 23, "K": 7, "L": 2}, {}),
    "vit-b-16": (
        "vit",
        {"H": 224, "W": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 1, "K": 1000},
        {},
    ),
    "torchvision": ("torchvision:vit_b_16", {"L": 1}, {"B": 2, "primitives": True}),
    "transformer": ("transformer", {"V": 17, "T_max": 11, "D": 12, "h": 3, "d_ff": 23, "R": 2, "L": 1}, {"T": 7}),
    "transformer-learned": (
        "transformer",
        {"V": 17, "T_max": 11, "D": 12, "h": 3, "d_ff": 23, "R": 2, "L": 1, "positions": "learned"},
        {"T": 7},
    ),
    "transformer-relative": (
        "transformer",
        {"V": 17, "T_max": 11, "D": 12, "h": 3, "d_ff": 23, "R": 2, "L": 1, "positions": "relative"},
        {"T": 7},
    ),
    "transformer-causal": (
        "transformer",
        {"V": 17, "T_max": 11, "D": 12, "h": 3, "d_ff": 23, "R": 2, "L": 1, "mask": "causal"},
        {"T": 7},
    ),
}
"""The runs that rows are looked up in: the model, its sizes and options, the sizes of the input. One more is made in
`note_checks`: `torchvision-standard`, the same block asked for its attention weights."""

BLOCK = "encoder.layers.encoder_layer_0."

OUTSIDE = {
    "tokenizer": "a pointer to how others make tokens; the models here read characters, words and patches",
    "medium": "a pointer to tokens of another medium; the models here read text and images",
}

SLIPS = {
    "ids": "Note 000 counts token ids from 1 to V; in the run they go from 0 to V-1.",
    "positions": "Note 000 has a position table of T rows; the run keeps T_max and takes the first T.",
    "letters": "Note 000 uses one letter for two things: S, M, H, P and K.",
    "b_vocab": "Note 000's summary leaves out b_vocab, which its section 2 has and the run adds.",
    "patches_causal": "Note 000 does not say that under the causal mask a patch can't see later patches either.",
    "first_word": "Text-only selection drops the last image position, so the first word is predicted only from a begin "
    "token.",
    "add_and_norm": 'Note 000 says "add & norm" where nothing is normalised: the step only adds.',
    "two_dimensions": "Note 000 calls a table of N rows a 2D position; a 2D position is made of a row and a column.",
    "epsilon": "Note 001 divides by σ + ε; the run divides by √(σ² + ε), with the biased variance.",
    "invariant": "Note 001 calls attention permutation-invariant; it is equivariant.",
    "symmetric": "With one shared projection the scores are symmetric, as note 001 says; the weights are not.",
    "channels_last": "Note 001's patches are channels-last; a strided convolution's weights must be reordered.",
    "no_last_norm": "Note 001 has no norm after the last block; Dosovitskiy et al. 2021 have one.",
    "anomaly_in_pixels": "Note 001 seeks deviating representations; the anomaly map here compares pixels.",
    "higher": 'Note 002 says "higher-dimensional"; in B/16 the projection goes from 768 to 768.',
    "columns": "Note 002 says that each column is a query; each row is.",
    "thirds": "Note 002 writes D_h = D/3; it is D/h.",
    "last_norm_left_out": "Note 002 leaves out the norm after the last block, which runs.",
    "positions_missing": "Note 003 does not list that positions are added.",
    "dropout": "Note 003 lists dropout; in evaluation it leaves no op.",
    "sequence_first": "Opened, torchvision's attention has the sequence in front, not the batch as in note 003.",
    "fused_only": "torchvision never asks for attention weights, so note 003's standard path does not run by itself.",
    "merged_by_permute": "On the fused path heads are merged by permute and view; note 003's contiguous does not run.",
    "seven_steps": "Note 003 opens layer norm into nine steps; PyTorch's decomposition has seven.",
    "view_mixes": "The view of note 003 without a transpose before it would mix images.",
    "exact_gelu": "Note 003 opens GELU by tanh; torchvision's is the exact one, and none of those steps run.",
    "six_products": "Note 003 counts five matrix products per block; on the standard path there are six.",
    "more_binary": "Note 003 counts about 20 binary ops per block; 29 run, six of which only multiply by 1.",
    "four_unary": "Note 003 counts about ten unary ops per block; four run: rsqrt twice, erf, and exp in softmax.",
    "four_means": "Note 003 counts four means per block, for three norms; two norms run, with one var_mean each.",
    "never_run": "baddbmm, chunk, split, pow and tanh of note 003 don't run; div runs inside softmax alone.",
    "two_norms": "Note 003 counts three layer norms per block; there are two, 3,072 parameters, and one at the end.",
    "heads_undefined": "Note 004 counts heads up to H, which it does not define.",
    "references": "Two references of note 004 name other authors than the papers that they link to.",
    "no_root": "The 2017 paper multiplies embeddings by √d_model; note 004 and the run do not.",
    "relative_not_added": "Note 004 adds every kind of position to X; relative ones act inside the scores.",
    "log_mask": "Note 004 adds log M of a mask of 0 and -∞, which is -∞ or NaN everywhere; the run adds M.",
    "key_rows": "Note 004 calls j a column of K; keys are rows of K, and columns of Kᵀ and of S.",
}
"""Where a note and the run differ, one sentence each."""


def rows() -> list[Row]:
    """All rows of the five notes."""
    found, run = [], ""
    for file in sorted((Path(__file__).parent / "note_rows").glob("*.txt")):
        for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
            if line.startswith("["):
                run = line.strip("[]")
                continue
            section, said, where, shape = (cell.strip().replace("@", BLOCK) for cell in line.split("|"))
            places = tuple(single for place in where.split(";") if place.strip() for single in _expanded(place.strip()))
            found.append(Row(file.stem, run, section, said, places, shape))
    return found


def _expanded(place: str) -> list[str]:
    """`step {query,key}` is `step query` and `step key`."""
    before, brace, rest = place.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")] if brace else [place]
