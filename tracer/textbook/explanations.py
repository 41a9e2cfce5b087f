"""Explanations of the steps of a model, in two or three sentences for a student.

Each sentence is a claim. A statement about the run has a predicate, and is shown if that holds; of alternatives, in
brackets, the first that holds. The first claim describes the line. `tracer.verify.checks.sentences`
measures each statement again, on the tensors of the run."""

from __future__ import annotations

from collections.abc import Collection

from tracer.expr import GELU, GELUTanh, Node, ReLU, SiLU, Tanh, Tensor
from tracer.expr.arithmetic import Over, Plus, Softmax
from tracer.expr.embeddings import ApplyRotary, Cosine, Lookup, RepeatKV, RotateEveryTwo, RotateHalf, Sine
from tracer.expr.images import Unfold
from tracer.expr.indexing import CausalMask
from tracer.expr.norms import LayerNorm, RMSNorm
from tracer.expr.rearrangements import PositionIds, SplitHeads
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim, Context, Why, is_fused, is_tied

ONE_SCALE = Claim(
    "This brings all tokens to one scale before the next step reads them.", so.top(LayerNorm, RMSNorm), "one scale"
)
INFINITE, FINITE = ({"opened": "0", "closed": closed} for closed in ("-∞", "a low number"))
"""What a causal mask has in open and in closed cells."""
RESCALING_CLAIMS = (
    Claim("A trainable γ and β then rescale and shift it.", so.norm_of_kind(LayerNorm, 1, 2), "trainable parameters"),
    Claim("A trainable γ then rescales it.", so.norm_of_kind(LayerNorm, 1), "trainable parameters"),
)
OWN_PARAMETERS_CLAIM = Claim(
    "It has its own γ and β.", so.both(so.norm_of_kind(LayerNorm, 1, 2), so.own_parameters), "own parameters"
)
ENDS = Claim("This is the block's output.", so.ends_its_block, "end of the block")
GOES_ON = Claim(
    "The next block reads it.", so.both(so.ends_its_block, so.read_by_a_block), "read by the next block", optional=True
)
SHARPEST = Claim(
    "If scores are too large, the softmax gives nearly all of a row to one token, and its gradient nearly vanishes."
)
SPREAD_CLAIM = Claim(
    "The standard deviation of a sum of d_k independent products grows as {growth}, so the scores are divided by "
    "{growth}.",
    so.over_root,
    "spread of a sum",
    values={"growth": "√d_k"},
)
FROM_0 = (Claim("Note 000 counts tokens from 1 to V, but the code counts from 0 to V − 1.", so.top(Lookup)),)
"""A note of tables of tokens."""
LONGER_TABLE_CLAIMS = (
    Claim("Note 000 has a table with T rows; the code keeps a longer one and takes its first T.", so.first_rows),
)
"""A note of tables of positions."""
SCORES_CLAIMS = (
    Claim("Every query meets every key: one number per pair of tokens, in every head.",
          so.both(so.of_attention("S"), so.several_heads), "one score for each pair and head"),
    Claim("Every query meets every key: one number per pair of tokens.",
          so.of_attention("S"), "one score for each pair"),
    Claim("Every query meets every key: one number per pair of channels.", so.of_channels, "one score for each pair"),
)  # fmt: skip
CONTEXT_CLAIMS = (
    Claim(
        "This is each token's mixture of the values, weighted by its row of the attention weights.",
        so.mixes_values,
        "mixture of values",
    ),
    Claim(
        "This is each channel's mixture of the values, weighted by its row of the attention weights.",
        so.of_channels,
        "mixture of values",
    ),
    Claim(
        "Each row of the attention weights mixes the values. The equation adds something to that mixture.",
        so.adds_to_mixture,
        "sum",
    ),
    Claim("It is computed from the attention weights and the values."),
)
ATTENTION_SUM = (
    Claim(
        "What the change put in place of the result of attention is added to the token.",
        so.adds_changed("O"),
        "changed operand",
    ),
    Claim("Attention adds what it found to the token instead of replacing it.", so.adds("O"), "adds attention"),
)
OUTPUT_CLAIMS = (
    Claim("The heads, which worked independently, are concatenated again.", so.heads_joined, "heads side by side"),
    Claim("With one head there is nothing to concatenate: the mixture is d_k wide.",
          so.both(so.one_head, so.ends_in("d_k")), "one head of width d_k"),
    Claim("With one head there is nothing to concatenate.", so.one_head, "one head"),
)  # fmt: skip
COLLAPSE = Claim(
    "Without this nonlinearity, the two matrices around it would collapse into one.",
    so.both(so.part("G"), so.made_of("U"), so.taken_only_by("F")),
    "between two matrices",
)
PLACES_MATTER = Claim("The dot products of attention compare what tokens contain.")
TOKEN_MIXING_CLAIM = Claim(
    "It has collected information from the others through attention.",
    so.both(so.takes_that_token, so.open_to_first),
    "open attention",
)


def positions(tail: str) -> tuple[Claim, ...]:
    """Return the claims for a vector that is added for each position: learned, fixed, or of unknown origin."""
    return (
        Claim(f"A trainable vector for each position is added, {tail}", so.adds_trainable, "trainable"),
        Claim(
            f"A fixed vector for each position, which training does not change, is added, {tail}",
            so.adds_fixed,
            "fixed",
        ),
        Claim(f"A vector for each position is added, {tail}", so.top(Plus), "sum"),
    )


def standardises(token: str, holds: so.Holds) -> Claim:
    """Return the claim that a layer norm gives each token one mean and one variance."""
    text = " is shifted to mean {mean} and scaled to variance {variance}. A small ε keeps the root from being 0."
    return Claim(token + text, holds, "mean and variance", values={"mean": "0", "variance": "1"})


def bends(name: str, node: type[Node], low: str) -> Claim:
    """Return the claim on how an activation transforms large and negative numbers."""
    text = "{name} keeps large numbers almost as they are, and maps every negative one to between {low} and 0."
    return Claim(text, so.top(node), "activation", values={"name": name, "low": low})


WHY: dict[str, Why] = {
    "norm1": (
        standardises("Each token", so.top(LayerNorm)),
        RESCALING_CLAIMS,
        Claim("Each token is normalised by itself.", so.top(LayerNorm), "tokenwise"),
    ),
    "query": (
        (
            Claim("This is what each token is looking for, once per head.",
                  so.both(so.of_attention("Q"), so.whole_heads("Q"), so.several_heads), "queries of several heads"),
            Claim("This is what each token is looking for.",
                  so.both(so.of_attention("Q"), so.whole_heads("Q")), "queries of one head"),
            Claim("These are the numbers of each query that change with its position. The others stay as they are.",
                  so.of_attention("Q"), "part of the queries"),
            Claim("This is what each channel is looking for.",
                  so.both(so.of_channels, so.part("Q")), "queries of one head"),
        ),
        (
            Claim("One matrix product computes all heads; its columns are then split, d_k to each head.",
                  so.both(so.several_heads, so.has(SplitHeads), so.ends_in("d_k")), "columns of all heads"),
            Claim("The product brings it from D numbers down to d_k, a small space for comparing tokens.",
                  so.both(so.one_head, so.widths("D", "d_k"), so.without(so.widens)), "width of one head"),
        ),
    ),
    "learned query": (
        Claim("These queries come from parameters alone, not from a token of the input, so they are the same for "
              "every input.", so.both(so.of_attention("Q"), so.depends("p")), "queries without input"),
    ),
    "key": (
        (
            Claim("This is what each token can be found by.",
                  so.both(so.of_attention("K"), so.whole_heads("K")), "keys"),
            Claim("These are the numbers of each key that change with its position. The others stay as they are.",
                  so.of_attention("K"), "part of the keys"),
            Claim("This is what each channel can be found by.", so.both(so.of_channels, so.part("K")), "keys"),
        ),
        Claim("Queries are compared with keys, never with the tokens themselves, so a token may look for something "
              "other than what it is.", so.own_projection("K", "Q"), "distinct"),
    ),
    "value": (
        (
            Claim("This is what each token passes on if it is attended to.", so.of_attention("V"), "values"),
            Claim("This is what each channel passes on if it is attended to.",
                  so.both(so.of_channels, so.part("V")), "values"),
        ),
        Claim("It is separate from the key: being found and being useful are two different things.",
              so.own_projection("V", "K"), "distinct"),
    ),
    "scores": (SCORES_CLAIMS, SPREAD_CLAIM, SHARPEST),
    "masked scores": (
        SCORES_CLAIMS,
        SPREAD_CLAIM,
        (
            Claim("The mask adds {opened} where a token may attend, {closed} where it may not. The softmax turns "
                  "{closed} into a weight of exactly 0.",
                  so.both(so.has_causal_mask, so.by_infinity), "open and closed cells", values=INFINITE),
            Claim("The mask adds {opened} where a token may attend, so low a number where it may not that the softmax "
                  "turns it into a weight of exactly 0.",
                  so.both(so.has_causal_mask, so.by_a_low_number), "open and closed cells", values=FINITE),
            Claim("The mask adds {opened} where a token may attend, {closed} where it may not.",
                  so.has_causal_mask, "open and closed cells", values=FINITE),
        ),
    ),
    "weights": (
        (
            Claim("Each row of scores becomes weights that sum to {total}: how much this token takes from every token.",
                  so.both(so.top(Softmax), so.of_attention("A")), "rows that sum to", values={"total": "1"}),
            Claim("Each row of scores becomes weights.", so.of_channels, "weights"),
        ),
        Claim("This is the tensor that attention maps show.", so.is_unchanged, "attention of the maps", optional=True),
    ),
    "context": (CONTEXT_CLAIMS, OUTPUT_CLAIMS),
    "output": (
        (
            Claim("So far the heads have worked independently. This product mixes what they found and brings it to the "
                  "model's width.",
                  so.both(so.of_attention("O"), so.heads_apart, so.linear, so.ends_in("D")), "heads mixed"),
            Claim("The result of attention is d_k wide, but a token is D wide. This product brings it back to D, so "
                  "that the two can be "
                  "added.",
                  so.both(so.of_attention("O"), so.one_head, so.linear, so.widths("d_k", "D")), "back to width D"),
            Claim("One more product, with a trainable matrix, transforms what attention found. It works on each token "
                  "alone.", so.linear, "tokenwise"),
            Claim("One more product transforms what attention found. It works on each token alone.",
                  so.part("O"), "tokenwise"),
        ),
    ),
    "residual": (
        ATTENTION_SUM,
        (
            Claim("The sum also gives gradients a direct way back through the block.",
                  so.straight, "straight way back"),
            Claim("The norm comes after this sum.", so.taken_only_by("X"), "read by norms alone"),
        ),
    ),
    "norm2": (
        standardises("Before the MLP, each token", so.both(so.top(LayerNorm), so.taken_by("U", "gate"))),
        OWN_PARAMETERS_CLAIM,
        Claim("The sum before this step stays as it was: only the MLP reads the normalised copy.",
              so.both(so.in_front, so.taken_only_by("U", "gate")), "read by the MLP alone"),
    ),
    "hidden": (
        (
            Claim("Each token alone is widened from D to d_ff numbers.",
                  so.both(so.linear, so.widths("D", "d_ff"), so.widens), "wider tokens"),
            Claim("Each token alone goes from D to d_ff numbers.", so.widths("D", "d_ff"), "tokenwise"),
        ),
        Claim("Attention moves information between tokens; the MLP works on each token alone.", so.linear, "tokenwise"),
    ),
    "GELU": (bends("GELU", GELU, "-0.17"), COLLAPSE),
    "GELUTanh": (bends("This GELU, which is approximated with tanh,", GELUTanh, "-0.18"), COLLAPSE),
    "ReLU": (Claim("ReLU keeps what is positive and sets the rest to 0.", so.top(ReLU), "ReLU"), COLLAPSE),
    "contract": (
        Claim("This product goes back from d_ff to D numbers, so that the result fits the residual stream.",
              so.widths("d_ff", "D"), "width D"),
        (
            Claim("The MLP of this block has {mlp_matrices} of {mlp} weights in all, its attention "
                  "{attention_matrices} of {attention}.",
                  so.weights_known, "weights of the block", fill=so.weights_of_the_block),
            Claim("This product works on each token alone.", so.linear, "tokenwise"),
            Claim("It is the last step of the MLP."),
        ),
    ),
    "residual2": (
        (
            Claim("What the change put in place of the MLP's result is added too.",
                  so.adds_changed("F"), "changed operand"),
            Claim("The MLP's result is added too.", so.adds("F"), "adds the MLP"),
        ),
        ENDS,
        GOES_ON,
    ),
    "transform": (
        Claim("Before the words are scored, each token goes through one more linear map of the same width.",
              so.both(so.linear, so.widths("D", "D")), "trainable"),
    ),
    "packed": (
        (
            Claim("One matrix product computes queries, keys and values at once: the three matrices lie side by side "
                  "in one.", so.packs(3), "packed product", values={"count": "3"}),
            Claim("One matrix product computes two of queries, keys and values at once: the two matrices lie side by "
                  "side in one.", so.packs(2), "packed product", values={"count": "2"}),
        ),
        Claim("The arithmetic is the same, and one large product uses the hardware better than several small ones."),
    ),
    "fused context": (
        CONTEXT_CLAIMS,
        OUTPUT_CLAIMS,
        Claim("One kernel computes all of attention here, and this is the first tensor that it returns.",
              so.is_fused, "fused"),
    ),
    "norm after": (
        standardises("After the residual sum, as in the first transformer, each token",
                     so.both(so.top(LayerNorm), so.behind_a_sum)),
        RESCALING_CLAIMS,
    ),
    "norm after 2": (
        standardises("After the second sum, too, each token", so.both(so.top(LayerNorm), so.behind_a_sum)),
        OWN_PARAMETERS_CLAIM,
        ENDS,
        GOES_ON,
    ),
    "sum before norm": (
        Claim("The MLP adds what it computed to the token instead of replacing it.", so.adds("F"), "adds the MLP"),
        Claim("The norm comes after this sum.", so.taken_only_by("X"), "read by norms alone"),
    ),
    "convolved": (
        Claim("A convolution whose stride is its kernel's side reads each patch once: it is the unfold operator (chw: "
              "channel, row, column) followed by one matrix product, and the equation writes it so.",
              so.has(Unfold), "convolution"),
        Claim("Each patch becomes a token of D numbers.", so.ends_in("D"), "width D"),
    ),
    "take": (Claim("Of all tokens, the head reads only the first, CLS.",
                   so.takes_that_token, "first row"), TOKEN_MIXING_CLAIM),
    "classes": (
        (
            Claim("One last matrix product gives a score for each class, the logit.",
                  so.both(so.linear, so.ends_in("K")), "trainable to width K"),
            Claim("Each class has a score, the logit.", so.ends_in("K"), "width K"),
        ),
        Claim("The softmax of the logits gives probabilities."),
    ),
    "cls": (
        (
            Claim("One more token is put in front: a vector of parameters, the same for every input. It holds no "
                  "pixels; whatever it learns about them comes through attention.",
                  so.begins_with_parameter, "one token in front"),
            Claim("Tokens are put in front whose numbers are parameters, the same for every input. They hold no "
                  "pixels; whatever they learn about them comes through attention.",
                  so.begins_with_parameters, "tokens in front"),
        ),
    ),
    "patch positions": (PLACES_MATTER, positions("so that every token carries what it shows and where it is.")),
    "lookup": (
        (
            Claim("Each token is a number, and this number selects a row of the table.",
                  so.top(Lookup), "rows of a table"),
            Claim("Each token is a number that selects a row of the table, and the equation continues with that row.",
                  so.has(Lookup), "some trainable parameter"),
        ),
        Claim("The rows are trainable: training can move tokens that are used alike close together.",
              so.trainable, "trainable"),
    ),
    "position": (PLACES_MATTER, positions("so that every token carries its content and its position.")),
    "places": (
        (
            Claim("The positions are numbered from 0. The numbers are the same for every text; a text that continues "
                  "from a cache would start at a later number.", so.top(PositionIds), "numbers from 0"),
            Claim("The positions are numbered, and the numbers are the same for every text.",
                  so.depends("c"), "from nothing"),
        ),
    ),
    "one": (
        Claim("Some programs put several short texts into one row, and their position numbers then start again inside "
              "the row. The code checks whether that is the case here. It is not, so the plain causal mask is right.",
              so.depends("c"), "ones"),
    ),
    "type": (
        (
            Claim("A trainable vector says which of the sentences a token belongs to.", so.trainable, "trainable"),
            Claim("A vector says which of the sentences a token belongs to.", so.top(Plus), "sum"),
        ),
    ),
    "mask": (
        (
            Claim("The mask has {opened} where a token may attend and {closed} where it may not: a token attends to "
                  "itself and to earlier tokens, never to later ones.",
                  so.both(so.has(CausalMask), so.by_infinity), "open and closed cells", values=INFINITE),
            Claim("The mask has {opened} where a token may attend and the lowest number there is where it may not: a "
                  "token attends to itself and to earlier tokens, never to later ones.",
                  so.both(so.has(CausalMask), so.by_a_low_number), "open and closed cells", values=FINITE),
            Claim("The mask has {opened} where a token may attend and {closed} where it may not: a token attends to "
                  "itself and to earlier tokens, never to later ones.",
                  so.has(CausalMask), "open and closed cells", values=FINITE),
        ),
        Claim("It is computed once, and all blocks add it to their scores.", so.causal, "causal"),
    ),
    "flag": (
        Claim("The mask has {opened} where a token may attend and {closed} where it may not: a token attends to itself "
              "and to earlier tokens, never to later ones.",
              so.both(so.has(CausalMask), so.by_infinity), "open and closed cells", values=INFINITE),
        Claim("The fused kernel is told that the mask is causal, and never stores the mask.", so.is_fused, "fused"),
        Claim("All blocks have this mask.", so.causal, "causal"),
    ),
    "types": (
        Claim("Each token gets the number of its sentence. No input sets these numbers here, so they are the same for "
              "every text.", so.without(so.depends("x")), "from nothing"),
    ),
    "taken": (Claim("This takes the first token, CLS, for the whole input.",
                    so.takes_that_token, "first row"), TOKEN_MIXING_CLAIM),
    "one scale": (ONE_SCALE,),
    "first norm": (
        standardises("Before the first block, each token", so.both(so.top(LayerNorm), so.part("first norm"))),
        RESCALING_CLAIMS,
    ),
    "norm": (
        Claim("Every block has added to the residual stream, and nothing has normalised the last sum.",
              so.behind_all_blocks, "sum of all blocks"),
        ONE_SCALE,
    ),
    "tied": (
        Claim("Every token of the vocabulary gets a score: how well its row of the embedding table fits the model's "
              "output at that position.", so.is_tied, "shared parameters"),
        Claim("The model uses the same table at both ends, which saves the parameters of a second one.",
              so.is_tied, "shared parameters"),
    ),
    "first": (
        Claim("The first token stands for the whole text.", so.part("first", "cls"), "first row"),
        Claim("Through attention it can see all others.", so.open_to_first, "open attention"),
    ),
    "pool": (
        Claim("One more matrix product turns the first token into a vector for tasks on whole texts.",
              so.linear, "trainable"),
        Claim("In the BERT paper, it served to tell whether one sentence follows another."),
    ),
    "tanh": (
        Claim("Each number is squashed to between {low} and {high}, so that no single one outweighs the rest.",
              so.top(Tanh), "bounds", values={"low": "-1", "high": "1"}),
        Claim("The result is the model's summary of the text."),
    ),
    "rms": (
        Claim("Each token is divided by the root of its mean square. A small ε keeps the root from being 0.",
              so.top(RMSNorm), "root mean square"),
        Claim("A trainable γ then rescales it.", so.norm_of_kind(RMSNorm, 1), "trainable parameters"),
        Claim("Nothing is subtracted, which is less work than a layer norm.", so.top(RMSNorm), "root mean square"),
    ),
    "angles": (
        Claim("Every position gets an angle for each pair of numbers, which grows fast for the first pairs and slowly "
              "for the last. Nothing is added to the tokens; later steps rotate queries and keys by these angles.",
              so.taken_only_by("cosine", "sine"), "angles"),
    ),
    "cosine": (
        Claim("These are the cosines of the angles. They are the same for all blocks and heads, so they are computed "
              "once.",
              so.both(so.has(Cosine), so.without(so.depends("x"))), "cosines of angles"),
    ),
    "sine": (
        Claim("These are the sines of the angles. Together with the cosines, they rotate a pair of numbers in its "
              "plane.",
              so.has(Sine), "sines of angles"),
    ),
    "rotated": (
        (
            Claim("Each pair of numbers is rotated by the angle of its position. The product of a query and a key "
                  "then depends on the distance between the two, but not on their positions.",
                  so.both(so.made_of("cosine", "sine"), so.top(ApplyRotary, Plus)), "rotated pairs"),
            Claim("Pairs of numbers are rotated by the angle of their position.",
                  so.made_of("cosine", "sine"), "other than its operands"),
            Claim("Pairs of numbers are rotated, each by an angle of its own.",
                  so.has(ApplyRotary, RotateHalf, RotateEveryTwo), "rotated pairs"),
        ),
    ),
    "grouped": (
        Claim("This is each token's mixture of the values, the heads side by side.",
              so.mixes_values, "mixture of values"),
        Claim("Several heads of queries share one head of keys and values, which is repeated for them. This leaves "
              "fewer numbers to cache for every token.", so.has(RepeatKV), "shared keys and values"),
    ),
    "gate": (
        (
            Claim("This is the first of two products that widen each token from D to d_ff.",
                  so.both(so.linear, so.widths("D", "d_ff"), so.widens), "wider tokens"),
            Claim("This is the first of two products that bring each token from D to d_ff numbers.",
                  so.linear, "tokenwise"),
        ),
        Claim("This one decides how much of the other passes.", so.taken_by("G"), "one reader"),
    ),
    "SiLU": (
        bends("SiLU", SiLU, "-0.28"),
        Claim("It is the activation of the gate.", so.part("activated gate"), "one reader"),
    ),
    "gated": (
        Claim("The gate is multiplied with the expanded token, number by number. What the gate sends to 0 is gone.",
              so.multiplies("G", "U"), "product of two"),
    ),
    "head": (
        (
            Claim("At every position, each token of the vocabulary gets a score: how likely it is to come next.",
                  so.both(so.scores_by_matrix, so.ends_in("V"), so.causal), "causal to width V"),
            Claim("At every position, each token of the vocabulary gets a score: how well it fits there.",
                  so.both(so.scores_by_matrix, so.ends_in("V")), "width V"),
        ),
        Claim("The softmax of a row of scores gives probabilities."),
    ),
    "cut": (
        Claim("A transformer takes a sequence, so the picture becomes one."),
        (
            Claim("It is cut into squares of P × P pixels, read row by row, each flattened pixel by pixel (hwc: row, "
                  "column, channel).", so.equation_is("Patches"), "patches hwc"),
            Claim("The unfold operator 𝒰 cuts it into squares of P × P pixels and flattens each one, channel after "
                  "channel (chw: channel, row, column).", so.top(Unfold), "patches chw"),
        ),
        Claim("This step only rearranges the numbers.", so.rearranges, "rearranged"),
    ),
    "embed": (
        Claim("A list of pixel values says little by itself."),
        Claim("A trainable matrix, the same for every patch, turns each patch into a token of D numbers.",
              so.both(so.linear, so.ends_in("D")), "trainable map"),
        Claim("In that space, similar contents can lie close together."),
    ),
    "order": (
        Claim("Attention by itself does not know the order of its tokens."),
        positions("so that every token carries what it shows and where it is."),
    ),
    "no look ahead": (
        Claim("A model that predicts the next token must not see it.", so.causal, "causal"),
        Claim("This matrix has {opened} where a token may attend, to itself and to earlier tokens, and {closed} "
              "where it may not.",
              so.both(so.has(CausalMask), so.by_infinity), "open and closed cells", values=INFINITE),
        Claim("It is computed once and added to the scores of every block.", so.causal, "causal"),
    ),
    "row of a table": (
        Claim("A token is only a number, and its size means nothing."),
        Claim("The number selects a row of E, D trainable numbers.",
              so.both(so.part("E"), so.trainable), "rows of a trainable table"),
    ),
    "tied logits": (
        Claim("The score of each entry of the vocabulary is the dot product of the token with that entry's row of the "
              "embedding matrix: its direction counts, and so does its length. Using E twice saves a matrix of V × D "
              "numbers.", so.is_tied, "shared parameters"),
    ),
    "own logits": (
        Claim("A separate matrix turns each token into a score for every entry of the vocabulary.",
              so.both(so.linear, so.ends_in("V"), so.without(so.is_tied)), "own parameters"),
    ),
    "probable next": (
        (
            Claim("The softmax of a row is the probability of each next token.", so.causal, "causal"),
            Claim("The softmax of a row gives probabilities."),
        ),
    ),
}  # fmt: skip


# Rules that select the explanation of a line by its role and its equation, independent of the model.

OF_PARTS = {
    "cls in front": "cls",
    "E": "lookup",
    "places": "places",
    "one": "one",
    "angles": "angles",
    "cosine": "cosine",
    "sine": "sine",
    "last norm": "norm",
    **dict.fromkeys(("QKV", "QK", "KV"), "packed"),
    "Q": "query",
    "K": "key",
    "V": "value",
    "rotated Q": "rotated",
    "rotated K": "rotated",
    "A": "weights",
    "O": "output",
    "gate": "gate",
    "gated": "gated",
    "classes": "classes",
}
"""Parts whose explanation is the same everywhere."""


def why(context: Context) -> Why:
    """Return the claims for a line; none if no explanation is known."""
    part, equation, operand_roles, users = context.part, context.equation, context.operand_roles, context.user_roles
    name = OF_PARTS.get(part, "")
    match part:
        case "Q" | "K" | "V" if is_repeated(context):
            name = ""
        case "I" if equation.has(Unfold):
            name = "convolved"
        case "Q" if context.run.roles.graph.depends[context.key] == "p":
            name = "learned query"
        case "cls":
            name = "take" if "classes" in context.run.parts.values() else "taken"
        case "position":
            name = "patch positions" if operand_roles & {"I", "sequence"} else "position"
        case "norm1" | "norm2" if isinstance(equation, RMSNorm):
            name = "rms"
        case "norm1" | "norm2" if context.role != "norm" and isinstance(equation, LayerNorm):
            name = "norm after" if part == "norm1" else "norm after 2"
        case "norm1" if isinstance(equation, LayerNorm) and users & {"Q", "K", "V", "QKV"}:
            name = "norm1"
        case "norm2" if isinstance(equation, LayerNorm) and users & {"U", "gate"}:
            name = "norm2"
        case "S" | "masked S":
            name = scores(equation, context.run.masks)
        case "H":
            name = "grouped" if equation.has(RepeatKV) else "fused context" if is_fused(context) else "context"
        case "X" | "Y" if "O" in operand_roles:
            name = "residual"
        case "X" | "Y" if "F" in operand_roles:
            last = context.run.roles.of[context.key] == "X"
            name = "residual2" if part == "X" and last else "sum before norm" if part == "Y" else ""
        case "U" if context.widths() == ("D", "d_ff"):
            name = "hidden"
        case "G" | "activated gate":
            name = type(equation).__name__ if (part == "G") != (type(equation).__name__ == "SiLU") else ""
        case "F" if context.widths() == ("d_ff", "D"):
            name = "contract"
        case "causal M" if any(len(mask.args) > 1 for mask in equation.atoms(CausalMask)):
            name = "mask"
        case "vocabulary":
            name = "tied" if is_tied(context) else "head"
    return WHY.get(name, ())


def is_repeated(context: Context) -> bool:
    """Return whether an operand of queries, keys or values has that part, too, and so its explanation."""
    roles, parts = context.run.roles, context.run.parts
    return any(parts[operand] == context.part for operand in roles.operands[context.key])


def scores(equation: Node, masks: Collection[str]) -> str:
    """Return the name of the explanation of scores: scaled by a root of a size, with a mask or without."""
    if isinstance(equation, Over):
        return "scores"
    if isinstance(equation, Plus) and isinstance(equation.args[0], Over) and isinstance(equation.args[1], Tensor):
        return "masked scores" if equation.args[1].key in masks else ""
    return ""
