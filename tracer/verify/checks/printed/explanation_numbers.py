"""Facts in sentences beside steps, each measured on the tensors of the run or recomputed.

The predicates that decide which sentences are shown (`tracer.textbook.claims`) look at the graph; what is here looks at
numbers, and knows nothing of roles or nodes. A sentence that states a fact and that nobody measures is a problem, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tracer.verify.checks.printed import sentence_measures as by
from tracer.verify.checks.printed.sentence_measures import MeasuredLine, StepIndex
from tracer.verify.checks.reference_run import PlainRun


def problems(run: PlainRun) -> Iterator[str]:
    """Check that each explanation is the one that was evaluated, that its claims hold, and that known false claims do
    not."""
    lines = (
        {derived_step.line.id: derived_step.line for derived_step in run.trace.later.derived_steps}
        if run.trace.later
        else {}
    )
    book = StepIndex(run)
    for step in run.trace.steps:
        line = lines.get(step.id)
        if line is None:
            continue
        if line.why != step.why:
            yield f"step {step.id!r} shows “{step.why}”, but what was evaluated is “{line.why}”"
        for claim in line.refuted:
            yield f"step {step.id!r} is said to be what it is not: “{claim}”"
        for sentence in line.facts:
            measured = [(match, holds) for pattern, holds in MEASURES.items() if (match := re.match(pattern, sentence))]
            if not measured:
                yield f"“{sentence}” states a fact that nobody measures"
            for match, holds in measured:
                if not holds(MeasuredLine(book, step), *match.groups()):
                    yield f"“{sentence}” does not hold of step {step.id!r}"


NUMBER = r"(-?[\d.]*\d)"
STANDARD = r"is shifted to mean (\S+) and scaled to variance (\S+?)\. A small ε"
MEASURES: dict[str, Callable[..., bool]] = {
    # norms
    rf"[^.]*[Ee]ach token {STANDARD}": by.standard,
    r"A trainable γ( and β)? then rescales?( and shift)? it": lambda line, *_: all(
        map(line.trainable, line.parameters)
    ),
    r"Each token is normalised by itself": by.tokenwise,
    r"It has its own γ and β": lambda line, *_: not by.shares_parameters(line),
    r"The sum before this step stays as it was: only the MLP reads": lambda line, *_: (
        by.one_user_kind("mlp")(line) and all(len(MeasuredLine(line.book, source).users) > 1 for source in line.sources)
    ),
    r"This brings all tokens to one scale": lambda line, *_: by.root_mean_square(line) or by.standard(line, "0", "1"),
    r"Each token is divided by the root of its mean square": by.root_mean_square,
    r"Nothing is subtracted, which is less work": by.root_mean_square,
    r"Every block has added to the residual stream, and nothing has normalised": lambda line, *_: any(
        by.sums_of_two(MeasuredLine(line.book, source), stage) for source in line.sources for stage in ("mlp", "norm")
    ),
    # queries, keys, values
    r"This is what each (?:token|channel) is looking for, once per head": by.every(by.queries, by.some_heads),
    r"This is what each (?:token|channel) is looking for\.": by.every(by.queries, by.single_head),
    r"One matrix product computes all heads; its columns are then split": by.every(by.some_heads, by.size("d_k")),
    r"The product brings it from D numbers down to d_k": lambda line, *_: by.single_head(line) and by.size("d_k")(line),
    r"These queries come from parameters alone": by.every(by.queries, by.from_nothing),
    r"These are the numbers of each query that change with its position": by.part_of_recorded("q"),
    r"These are the numbers of each key that change with its position": by.part_of_recorded("k"),
    r"This is what each (?:token|channel) can be found by": by.keys,
    r"Queries are compared with keys, never with the tokens": by.distinct,
    r"This is what each (?:token|channel) passes on if it is attended to": by.values,
    r"It is separate from the key": by.distinct,
    r"One matrix product computes (two of )?queries, keys and values at once": lambda line, two: any(
        line.value.size == values[key.q].numel() + values[key.k].numel() * (1 if two else 2)
        for key in line.records
        for values in [line.book.trace.values]
    ),
    # scores, weights, context
    r"Every query meets every key: one number per pair of (?:tokens|channels), in every head": by.every(
        by.some_heads,
        lambda line, *_: (
            line.step.shape[-3:] in [(record.heads, record.queries, record.keys) for record in line.records]
        ),
    ),
    r"Every query meets every key: one number per pair of (?:tokens|channels)\.": lambda line, *_: (
        line.step.shape[-2:] in [(record.queries, record.keys) for record in line.records]
    ),
    r"The standard deviation of a sum of d_k independent products grows as (\S+), so the scores are divided by "
    r"": by.spread,
    r"The mask adds (\S+) where a token may attend, (-∞|so low a number|a low number) where it may not": by.hides,
    r"The mask has (\S+) where a token may attend and (-∞|the lowest number there is|a low number) where it may not: "
    "a token attends "
    r"to": by.hides,
    r"This matrix has (\S+) where a token may attend, to itself and to earlier tokens, and (-∞) where it may "
    r"not": by.hides,
    r"The matrix of (0) and (-∞) is added to the scores of every block": by.hides,
    r"(?:It is computed once,? and (?:all blocks add it|added to the scores)|All blocks have|A model that "
    r"predicts)": by.causal,
    r"The fused kernel is told that the mask is causal|One kernel computes all of attention here": lambda line, *_: all(
        record.fused for record in line.records
    ),
    r"Each row of scores becomes weights that sum to (\d+): how much this token takes": by.rows_sum_to,
    r"Each row of scores becomes weights\.": lambda line, *_: True,
    r"This is each (?:token|channel)'s mixture of the values": by.mixture,
    r"The heads, which worked independently, are concatenated again": by.every(by.some_heads, by.heads_are_joined),
    r"With one head there is nothing to concatenate: the mixture is d_k wide": by.every(by.single_head, by.size("d_k")),
    r"With one head there is nothing to concatenate\.": by.single_head,
    r"Several heads of queries share one head of keys and values": lambda line, *_: any(
        array.shape[1] < record.heads or len({row.tobytes() for row in array[0]}) < record.heads
        for record in line.records
        for array in [line.book.trace.values[record.k].numpy()]
    ),
    r"So far the heads have worked independently\. This product mixes what they found": by.every(
        by.some_heads, by.is_trained, by.size("D")
    ),
    r"The result of attention is d_k wide, but a token is D wide": lambda line, *_: (
        by.single_head(line) and by.size("D")(line) and line.operands[0].shape[-1] != line.value.shape[-1]
    ),
    r"One more product(?:, with a trainable matrix,)? transforms what attention found": by.tokenwise,
    # sums
    r"Attention adds what it found to the token instead of replacing it": by._adds("attention"),
    r"The MLP adds what it computed to the token|The MLP's result is added": by._adds("mlp"),
    r"The sum also gives gradients a direct way back": by.straight,
    r"The norm comes after this sum|One more norm follows|The sum is normalised in the next step": by.one_user_kind(
        "norm"
    ),
    r"This is the block's output": by.in_block,
    r"The next block reads it": by.next_block,
    # the MLP
    r"Each token alone is widened from D to d_ff numbers": lambda line, *_: (
        by.tokenwise(line) and by.by_last_axis(line, True)
    ),
    r"This product works on each token alone": by.tokenwise,
    r"Each token alone goes from D to d_ff numbers": by.tokenwise,
    r"Attention moves information between tokens; the MLP works on each token alone": by.tokenwise,
    rf"(GELU|This GELU, which is approximated with tanh,|SiLU) keeps large numbers almost as they are, and maps every "
    rf"negative one to between {NUMBER} and 0": by.bends,
    r"ReLU keeps what is positive and sets the rest to 0": by.is_rectified,
    r"Without this nonlinearity, the two matrices around it would collapse into one": lambda line, *_: (
        len(line.users) == len(line.sources) == 1 and {line.users[0].stage, line.sources[0].stage} == {"mlp"}
    ),
    r"This product goes back from d_ff to D numbers, so that": by.size("D"),
    r"The MLP of this block has (\w+ matri\w+) of ([\d,]+) weights .* attention (\w+ matri\w+) of ([\d,]+)": by.weighs,
    r"This is the first of two products that widen each token from D to d_ff": lambda line, *_: (
        by.tokenwise(line) and by.by_last_axis(line, True)
    ),
    r"This is the first of two products that bring each token": by.tokenwise,
    r"This one decides how much of the other passes": lambda line, *_: len(line.users) == 1,
    r"It is the activation of the gate": lambda line, *_: len(line.users) == 1,
    r"The gate is multiplied with the expanded token": by.of_operands(lambda a, b: a * b),
    # positions
    r"[^.]*trainable vector(?: for each position is added|, the same for all tokens of a kind| says "
    r"which)": by.is_trained,
    r"A fixed vector for each position, which training does not change": by.is_fixed,
    r"A vector (?:for each position is added|says which of the sentences)": lambda line, *_: True,
    r"The positions are numbered from 0": lambda line, *_: (
        by.from_nothing(line) and (line.value.reshape(-1, line.value.shape[-1]) == range(line.value.shape[-1])).all()
    ),
    r"Some programs put several short texts into one row": lambda line, *_: bool((line.value == 1).all()),
    r"Each token gets the number of its sentence": by.from_nothing,
    r"Every position gets an angle for each pair of numbers, which grows fast for the first pairs and slow": by.waves,
    r"These are the cosines of the angles": by.either(by.of_operands(lambda angle: by.np.cos(angle)), by.oscillates(1)),
    r"These are the sines of the angles": by.either(by.of_operands(lambda angle: by.np.sin(angle)), by.oscillates(0)),
    r"Pairs of numbers are rotated by": lambda line, *_: (
        not any(by.close(operand, line.value) for operand in line.operands)
    ),
    r"Each pair of numbers is rotated by the angle of its position": by.is_rotated,
    r"Every position gets its own pattern: waves": by.rotates,
    r"Nothing here is trained\. One fixed rotation turns the pattern of a position": by.rotates,
    r"No position is added here: positions enter when queries and keys are rotated": by.alibi_free,
    r"Because it is a sum, every score splits into four terms": lambda line, *_: " + " in line.step.latex,
    r"This is the distance from the query to each key, clipped to between -R and R and shifted by R": by.distances,
    r"Each query also meets a trainable vector for each distance": lambda line, *_: by.is_trained(line),
    r"The weights of each row are added up by distance": by.shares_by_distance,
    # the beginning
    r"It is cut into squares of P × P pixels, read row by row, each flattened pixel by pixel \(hwc": by.patches("hwc"),
    r"The unfold operator 𝒰 cuts it into squares of P × P pixels[^(]*\(chw": by.patches("chw"),
    r"This step only rearranges|The scores of each patch are put where": by.is_rearranged,
    r"(?:A|One) trainable matrix(?:, the same for every (?:patch|place),)? (?:turns|prepares|maps)": by.every(
        by.is_trained, by.tokenwise
    ),
    r"A convolution whose stride is its kernel's side reads each patch once": lambda line, *_: any(
        "convolution" in line.book.trace.ops[index].op for index in line.step.ops
    ),
    r"Each patch becomes a token of D numbers": by.size("D"),
    r"One more token is put in front: a vector of parameters": lambda line, *_: any(
        by.close(line.value[:, 0], by.np.broadcast_to(by.array(operand).reshape(-1), line.value[:, 0].shape))
        for path, operand in line.book.parameters.items()
        if path in line.parameters and operand.numel() == line.value.shape[-1]
    ),
    r"Tokens are put in front whose numbers are parameters": lambda line, *_: any(
        by.close(line.value[:, :count], by.np.broadcast_to(front, line.value[:, :count].shape))
        for path in line.parameters
        if path in line.book.parameters
        for front in [by.array(line.book.parameters[path]).reshape(1, -1, line.value.shape[-1])]
        for count in [front.shape[1]]
    ),
    r"Each token is a number, and this number selects a row of the table\.": by.table_rows,
    r"Each token is a number that selects a row of the table, and": lambda line, *_: any(
        map(line.trainable, line.parameters)
    ),
    r"The positions are numbered, and the numbers are the same": by.from_nothing,
    r"The rows are trainable": by.is_trained,
    r"The number selects a row of E, D trainable numbers": by.every(by.is_trained, by.table_rows),
    r"Patches first, then words, in one sequence": lambda line, *_: (
        line.step.shape[1] == sum(segment.stop - segment.start for segment in line.book.trace.segments)
    ),
    r"Every patch is embedded here": lambda line, *_: (
        line.step.shape[1] == line.book.trace.picture.rows * line.book.trace.picture.columns
    ),
    r"Only the patches on the list π go on": lambda line, *_: (
        by.some_rows(line) and line.step.shape[1] < line.sources[0].shape[1]
    ),
    r"One trainable vector stands for every patch that is hidden": by.every(by.is_trained, by.from_nothing),
    r"Each visible token goes back to its own place": lambda line, *_: by.some_rows(line) or len(line.operands) > 1,
    r"Words see the whole picture and the words before them": by.causal,
    r"Words see the picture and the words before them, and the patches see each other": by.prefix,
    r"The model predicts words only, so it reads only the tokens of words": by.some_rows,
    r"Places of the text that stand for patches get the patches' tokens": lambda line, *_: len(line.operands) > 1,
    r"The order of random numbers says which patches are hidden": lambda line, *_: line.value.ndim == 2,
    # the end
    r"(?:Of all tokens, the head reads only the first|This takes the first token|The first token stands "
    r"for)": by.first_row,
    r"(?:It has collected information from the others through attention|Through attention it can see all "
    r"others)": by.open_,
    r"(?:It is dropped here, but it was useful|Each was computed with information from the whole photo)": by.open_,
    r"Each class has a score": by.size("K"),
    r"One last matrix product gives a score for each class": by.every(by.is_trained, by.size("K")),
    r"At every position, each token of the vocabulary gets a score: how likely it is to come next": by.every(
        by.causal, by.size("V")
    ),
    r"At every position, each token of the vocabulary gets a score: how well it fits": by.size("V"),
    r"Every token of the vocabulary gets a score|The model uses the same table at|The score of each entry of "
    r"the": by.shares_parameters,
    r"A separate matrix turns each token into a score": lambda line, *_: not by.shares_parameters(line),
    r"The softmax of a row is the probability of each next token": by.causal,
    r"(?:Before the words are scored|One more matrix product turns the first token)": by.is_trained,
    rf"Each number is squashed to between {NUMBER} and {NUMBER}": lambda line, least, most: (
        float(least) <= line.value.min() and line.value.max() <= float(most) and line.value.min() < 0 < line.value.max()
    ),
    r"The tokens are in the order in which the patches were cut": by.is_rearranged,
    r"The softmax makes each row of scores probabilities that sum to (\d+)": lambda line, total: (
        abs(line.value.sum(-1) - int(total)).max() < 1e-5
    ),
    # photos and sentences
    r"This says where the first end token of each stands": by.one_end,
    r"From each sentence, the model reads one token: the one where it ends": lambda line, *_: (
        line.step.shape[-2:] != line.sources[0].shape[-2:]
    ),
    r"The causal mask lets it see every word before it|The text tower is causal": by.causal,
    r"The other tower has its own matrix": lambda line, *_: not by.shares_parameters(line),
    r"One matrix maps the output of the tower into the space": by.is_trained,
    r"Only the direction matters|This vector is divided by its own|The product of two such vectors": by.unit_rows,
    r"Every photo is compared with every sentence: 1 where": by.unit_products,
    rf"Cosines lie between {NUMBER} and {NUMBER}, too close": by.cosines,
    r"A trainable factor spreads them|Every sentence is compared with every photo: these are cosines, times a "
    "trainable": by.is_trained,
    r"Each token becomes the pixels of its patch": by.tokenwise,
}
"""What a sentence begins with, and what measures it."""
