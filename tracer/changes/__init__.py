"""Changes: edits of the value of a line of the textbook in a run, to see what depends on it.

`model.trace(change={"block3.attention.weights": tracer.changes.drop_heads([1])})` names the line by its id. The changed
run is a trace like any other. Source: causal interventions (Vig et al. 2020), activation patching (Meng et al. 2022),
ablation of heads (Michel et al. 2019).
"""

from tracer.changes import kinds, of_inputs
from tracer.changes.kinds import Change, TargetLine
from tracer.changes.of_inputs import InputChange
from tracer.changes.text import changes_of, divide, has_name, moves_tokens, parse, parse_all, write

zero, scale, mean, noise = kinds.Zero, kinds.Scale, kinds.Mean, kinds.Noise
drop_heads, keep_heads = kinds.Drop, kinds.Keep
shuffle, replace, take, off = kinds.Shuffle, kinds.Replace, kinds.Take, kinds.Off
unscale, shuffle_positions = kinds.Unscale, kinds.ShufflePositions
causal, window, close = kinds.Causal, kinds.Window, kinds.Close
bidirectional, prefix, open = kinds.Bidirectional, kinds.Prefix, kinds.Open
hide, mask_words, permute = of_inputs.Hide, of_inputs.MaskWords, of_inputs.Permute
