"""Why the steps of a model are there, in two or three sentences for a student."""

WHY = {
    "norm1": "Each token's numbers are shifted to mean 0 and scaled to variance 1, with a small ε that keeps the root "
    "from 0, then rescaled by learned γ and β. No token sees another here. With the norm in front, Xiong et al. 2020 "
    "trained deep stacks without a warm-up.",
    "query": "What each token is looking for, once per head. One matrix product makes all heads; its columns are then "
    "dealt out, d_k to each head.",
    "learned query": "What is looked for here is made of parameters alone, by no token of the input: the same is asked "
    "of every input.",
    "key": "What each token offers to be found by. Queries are compared with keys, never with the tokens themselves, "
    "so a token may look for something other than what it is.",
    "value": "What each token hands over if it is attended to. It is separate from the key: being found and being "
    "useful are two different things.",
    "scores": "Every query against every key: one number for each pair of tokens, in every head. The spread of a "
    "sum of d_k products grows as √d_k, so that is divided out: the larger the scores, the more of a row goes to one "
    "token alone, and the smaller the softmax's gradients become.",
    "masked scores": "Every query against every key, over √d_k, plus the mask: 0 where a token may look, -∞ where it "
    "may not. Added before the softmax, -∞ becomes a share of exactly 0.",
    "weights": "Each row of scores becomes shares that sum to 1: how much this token takes from every token. "
    "This is the tensor that attention maps show.",
    "context": "Each token's mixture of all values, weighted by its row of shares. The heads, which worked apart, are "
    "laid side by side again.",
    "output": "Until here no head knew of the others. This product mixes what they found and brings it back to the "
    "model's width.",
    "residual": "Attention adds to the token what it found instead of replacing it. The sum also gives gradients a "
    "straight way back through all blocks.",
    "norm2": "The tokens are normalised once more before the MLP, with a γ and β of their own. The sum before this "
    "step stays as it was: only the MLP reads the normalised copy.",
    "hidden": "Each token alone is widened from D to d_ff numbers. Attention moved information between tokens; from "
    "here on each token works on what it has.",
    "GELU": "GELU keeps large numbers almost as they are, and maps every negative one to between -0.17 and 0. Without "
    "this bend the two products around it would be one product.",
    "GELUTanh": "This GELU is the approximation by tanh that GPT-2 was trained with. It keeps large numbers almost as "
    "they are, and maps every negative one to between -0.18 and 0.",
    "ReLU": "ReLU keeps what is positive and sets the rest to 0. Without this bend the two products around it would "
    "be one product.",
    "contract": "Back from d_ff to D numbers, so that the result fits the residual stream. Where d_ff is 4 · D, the "
    "two products of the MLP hold twice as many weights as the four of attention.",
    "residual2": "The MLP's result is added too. This sum is the block's output and the next block's input.",
    "transform": "Before the words are scored, each token goes through one more linear map of the same width.",
    "packed": "Queries, keys and values in one matrix product instead of three: the three matrices lie "
    "side by side in one. It is the same arithmetic, and one large product keeps the machine "
    "busier than three small ones.",
    "fused context": "Each token's mixture of all values, weighted by its row of shares; the heads, which worked "
    "apart, are laid side by side. Where one kernel does all of attention, this is the first tensor that comes out of "
    "it.",
    "norm after": "The sum is normalised after the residual, as in the first transformer: mean 0 and variance"
    " 1 for each token, then γ and β. The residual stream itself is normalised, so no last norm"
    " is needed.",
    "norm after 2": "The second sum is normalised too, with a γ and β of its own. This is the block's output, "
    "and the next one's input.",
    "sum before norm": "The MLP adds to the token what it computed instead of replacing it. The norm comes after "
    "this sum.",
    "convolved": "A convolution whose stride is its kernel's side looks at each patch once: it is the unfold"
    " operator (chw: channel, row, column) and one matrix product, which is how the equation says it. Each patch "
    "becomes a token of D numbers.",
    "take": "Of all tokens only the first, CLS, is read for the class. The patches have spoken to it through "
    "attention.",
    "classes": "One last matrix product gives a score for each class, the logit. The softmax of the logits is the "
    "probability shown.",
    "cls": "One more token, a vector of parameters that is the same for every photo, is put in front. It holds no "
    "pixels; all that it gets to know of them comes through attention.",
    "patch positions": "The dot products of attention compare what tokens hold. A learned vector for each place is "
    "added, so that every token carries what it shows and where it lies.",
    "lookup": "Each token is a number, and the number says which row of the table it gets. The rows are "
    "parameters: training can bring those of tokens that are used alike near each other.",
    "position": "The dot products of attention compare what tokens hold. A learned vector for each place is added,"
    " so that every token carries what it is and where it stands.",
    "places": "The places are numbered from 0. The numbers are the same for every text; only a text that "
    "goes on from a cache would start later.",
    "one": "Some programs lay several short texts behind each other in one row, and their place "
    "numbers then start anew inside it. The code asks whether that is so here; it is not, so "
    "the plain causal mask is right.",
    "type": "A learned vector says which of two sentences a token belongs to. With one sentence it is "
    "the same for all.",
    "mask": "0 where a token may look, the lowest number there is where it may not: at itself and "
    "before, never ahead. It is made once, and all blocks add it to their scores.",
    "flag": "0 where a token may look, -∞ where it may not: at itself and before, never ahead. The fused kernel is "
    "only told that the mask is causal, and never holds it; all blocks add it to their scores.",
    "types": "Each token has the number of the sentence that it stands in. Here all stand in one, so all are 0.",
    "taken": "The first token, CLS, stands for the whole photo. Through attention the patches have spoken to it.",
    "one scale": "All tokens are brought to one scale before they are read.",
    "first norm": "The sum of the three tables is normalised before the first block: mean 0 and variance 1 "
    "for each token, then γ and β.",
    "norm": "Every block added to the residual stream, and no norm stands behind the last sum. This one brings all "
    "tokens to one scale before they are read.",
    "tied": "Every token of the vocabulary gets a score: how well its row of the embedding table fits "
    "what the model expects next. The same table is read at both ends, which saves its "
    "parameters once.",
    "first": "The first token stands for the whole text. Through attention it can see all others.",
    "pool": "One more matrix product turns the first token into a vector for tasks on whole texts. BERT's "
    "authors trained it to tell whether one sentence follows another.",
    "tanh": "Each number is squashed to between -1 and 1, so that no single one outweighs the rest. The"
    " result is the model's summary of the text.",
    "rms": "Each token is divided by the root of its mean square and rescaled by a learned γ. Nothing is "
    "subtracted: this norm keeps what a layer norm keeps, with less work.",
    "angles": "Every place gets an angle for each pair of numbers: fast for the first pairs, slow for the last. "
    "Nothing is added to the tokens; queries and keys will be turned by these angles.",
    "cosine": "The cosines of the angles. They are the same for all blocks and heads, so they are made once.",
    "sine": "The sines of the angles. Together with the cosines they turn a pair of numbers in its plane.",
    "turned": "Each pair of numbers is turned by the angle of its place. The product of a query and a key then "
    "depends on how far apart they stand, not on where.",
    "query of one head": "What each token is looking for. The product brings it from D numbers down to d_k, a small "
    "space that is made for comparing.",
    "scores of one head": "Every query against every key: one number for each pair of tokens. The spread of a sum of "
    "d_k products grows as √d_k, so that is divided out: the larger the scores, the more of a row goes to one token "
    "alone, and the smaller the softmax's gradients become.",
    "context of one head": "Each token's mixture of all values, weighted by its row of shares. With one head there is "
    "nothing to lay side by side: the mixture is d_k wide.",
    "output of one head": "What was found is d_k wide, the token D. This product brings it back, so that the two can "
    "be added.",
    "grouped": "Each token's mixture of values, the heads side by side. Several heads of queries share one head of "
    "keys and values, which is repeated for them: fewer numbers to keep for every token.",
    "gate": "The first of two products that widen each token from D to d_ff. This one decides what is let through.",
    "SiLU": "SiLU keeps large numbers almost as they are and maps every negative one to between -0.28 and 0. It is the "
    "gate's bend.",
    "gated": "The gate is multiplied with the expanded token, number by number. What the gate sends to 0 is gone.",
    "head": "At every place, each token of the vocabulary gets a score: how well it would come next. The softmax of a "
    "row of scores gives probabilities.",
}
