"""Errata: differences between a note and the run, one sentence each, and the run's own version, measured."""

from __future__ import annotations

from tracer.lessons.notes.errata import note_003, notes_000_004, notes_001_002
from tracer.lessons.notes.errata.erratum import Evidence, Slip

__all__ = ["SLIPS", "Evidence", "Slip"]

SLIPS: dict[str, Slip] = {
    "ids": Slip(
        "Note 000 counts token ids from 1 to V; in the run they go from 0 to V\u00a0−\u00a01.", "not", notes_000_004.ids
    ),
    "positions": Slip(
        "Note 000 has a position table of T rows; that of the run has T_max rows, of which it takes the first T.",
        "sense",
        notes_000_004.positions,
    ),
    "letters": Slip("Note 000 uses one letter for two things: S, M, H, P and K.", "sense", notes_000_004.letters),
    "b_vocab": Slip(
        "Note 000's summary leaves out b_vocab, which its section 2 has and the run adds.",
        "sense",
        notes_000_004.b_vocab,
    ),
    "patches_causal": Slip(
        "Note 000 does not say that under the causal mask a patch can't see later patches either.",
        "sense",
        notes_000_004.patches_causal,
    ),
    "first_word": Slip(
        "Text-only selection drops the last image position, so the first word is predicted only from a begin token.",
        "sense",
        notes_000_004.first_word,
    ),
    "add_and_norm": Slip(
        'Note 000 says "add & norm" where nothing is normalised: the step only adds.', "not", notes_000_004.add_and_norm
    ),
    "two_dimensions": Slip(
        "Note 000 calls a table of N rows a 2D position; a 2D position consists of a row and a column.",
        "sense",
        notes_000_004.two_dimensions,
    ),
    "epsilon": Slip(
        "Note 001 divides by σ + ε; the run divides by √(σ² + ε), with the biased variance.",
        "sense",
        notes_001_002.epsilon,
    ),
    "invariant": Slip(
        "Note 001 calls attention permutation-invariant; it is equivariant.", "not", notes_001_002.invariant
    ),
    "symmetric": Slip(
        "With one shared projection the scores are symmetric, as note 001 says; the weights are not.",
        "sense",
        notes_001_002.symmetric,
    ),
    "channels_last": Slip(
        "Note 001's patches are channels-last; a strided convolution's weights must be reordered.",
        "sense",
        notes_001_002.channels_last,
    ),
    "no_last_norm": Slip(
        "Note 001 has no norm after the last block; Dosovitskiy et al. 2021 have one.",
        "sense",
        notes_001_002.no_last_norm,
    ),
    "anomaly_in_pixels": Slip(
        "Note 001 looks for deviating representations; the anomaly map here compares pixels.",
        "sense",
        notes_001_002.anomaly_in_pixels,
    ),
    "no_upsampling": Slip(
        "Note 001 speaks of upsampling; here no value is interpolated.", "sense", notes_001_002.no_upsampling
    ),
    "higher": Slip(
        'Note 002 says "higher-dimensional"; in B/16 the projection goes from 768 to 768.',
        "sense",
        notes_001_002.higher,
    ),
    "columns": Slip("Note 002 says that each column is a query; each row is.", "not", notes_001_002.columns),
    "thirds": Slip("Note 002 writes D_h = D/3; it is D/h.", "not", notes_001_002.thirds),
    "last_norm_left_out": Slip(
        "Note 002 leaves out the norm after the last block, which runs.", "not", notes_001_002.last_norm
    ),
    "linear_head": Slip(
        "Note 002's example has an MLP as head; here it is one matrix.", "sense", notes_001_002.linear_head
    ),
    "positions_missing": Slip("Note 003 does not list that positions are added.", "sense", note_003.positions_missing),
    "batch_letter": Slip(
        "Note 003 calls the batch N; here that is B, and N is the number of patches.", "sense", note_003.batch_letter
    ),
    "dropout": Slip(
        "Note 003 lists dropout; it drops numbers in training only, and in evaluation passes its input on.",
        "sense",
        note_003.dropout,
    ),
    "sequence_first": Slip(
        "Inside, torchvision's attention has the sequence as its first axis, not the batch as in note 003.",
        "sense",
        note_003.sequence_first,
    ),
    "fused_only": Slip(
        "torchvision never asks for attention weights, so note 003's standard path does not run by itself.",
        "sense",
        note_003.fused_only,
    ),
    "merged_by_permute": Slip(
        "On the fused path heads are merged by permute and view; note 003's contiguous does not run.",
        "sense",
        note_003.merged,
    ),
    "seven_steps": Slip(
        "Note 003 decomposes layer norm into nine steps; PyTorch's decomposition has seven.",
        "sense",
        note_003.seven_steps,
    ),
    "view_mixes": Slip(
        "The view of note 003, without a transpose before it, would mix images.", "sense", note_003.view_mixes
    ),
    "exact_gelu": Slip(
        "Note 003 decomposes GELU by tanh; torchvision's is the exact one, and none of those steps run.",
        "not",
        note_003.exact_gelu,
    ),
    "six_products": Slip(
        "Note 003 counts five matrix products per block; on the standard path there are six.",
        "sense",
        note_003.six_products,
    ),
    "more_binary": Slip(
        "Note 003 counts about 20 binary ops per block; 29 run, six of which only multiply by 1.",
        "not",
        note_003.more_binary,
    ),
    "four_unary": Slip(
        "Note 003 counts about ten unary ops per block; four run: rsqrt twice, erf, and exp in softmax.",
        "not",
        note_003.four_unary,
    ),
    "not_unary": Slip(
        "Note 003 lists pow, GELU and softmax under unary ops; of these, only GELU is one.", "not", note_003.not_unary
    ),
    "four_means": Slip(
        "Note 003 counts four means per block, for three norms; two norms run, with one var_mean each.",
        "not",
        note_003.four_means,
    ),
    "never_run": Slip(
        "baddbmm, chunk, split, pow and tanh of note 003 don't run; div runs inside softmax alone.",
        "not",
        note_003.never_run,
    ),
    "two_norms": Slip(
        "Note 003 counts three layer norms per block; there are two, 3,072 parameters, and one at the end.",
        "not",
        note_003.two_norms,
    ),
    "heads_undefined": Slip(
        "Note 004 counts heads up to H, which it does not define.", "sense", notes_000_004.heads_undefined
    ),
    "references": Slip(
        "Two references of note 004 name the wrong authors for the papers that they link to.",
        "sense",
        notes_000_004.from_papers("arXiv 1508.06615 is by Kim et al., 2016; P96-1041 is by Chen and Goodman, 1996"),
    ),
    "byte_pairs": Slip(
        "GPT-2's tokenizer merges bytes into pieces; it does not have one id for each byte, as note 004 says.",
        "not",
        notes_000_004.byte_pairs,
    ),
    "tubelets": Slip(
        "TimeSformer cuts each frame into 2D patches; spatio-temporal ones are the tubelets of ViViT.",
        "not",
        notes_000_004.from_papers(
            "Bertasius et al. 2021, section 3: patches of P × P from each frame; Arnab et al. 2021, "
            "section 3.2: tubelets"
        ),
    ),
    "ts2vec": Slip(
        "TS2Vec gives each time step a vector and no id, so it is not a tokenizer in the sense of section 1.",
        "sense",
        notes_000_004.from_papers(
            "Yue et al. 2022, section 2: a representation of every timestamp, learned by contrast"
        ),
    ),
    "single_multi": Slip(
        "Note 004's heading says single-head, its contents say multi-head: each head runs the single-head formula.",
        "sense",
        notes_000_004.single_multi,
    ),
    "no_root": Slip(
        "The 2017 paper multiplies embeddings by √d_model; note 004 and the run do not.", "sense", notes_000_004.no_root
    ),
    "relative_not_added": Slip(
        "Note 004 adds every kind of position to X; relative ones act inside the scores.",
        "sense",
        notes_000_004.relative,
    ),
    "log_mask": Slip(
        "Note 004 adds log M of a mask of 0 and -∞, which is -∞ or NaN everywhere; the run adds M.",
        "not",
        notes_000_004.log_mask,
    ),
    "key_rows": Slip(
        "Note 004 calls j a column of K; keys are rows of K, and columns of Kᵀ and of S.", "not", notes_000_004.key_rows
    ),
}
"""Errata by name. "sense": the note holds in this sense; "not": the run has something else."""
