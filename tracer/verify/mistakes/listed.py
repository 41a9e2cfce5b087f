"""The mistakes that somebody thought of: each a small lie of the kind that a tool like this could tell."""

from __future__ import annotations

from tracer.verify.mistakes import Mistake

LISTED = [
    Mistake(*mistake)
    for mistake in (
        # equations
        (
            "the scale dropped from the printed scores",
            "derive/numbers.py",
            "return Scaled(Scalar(below), x) if above == 1 else Over(x, root)",
            "return Scaled(Scalar(below), x) if above == 1 else x",
        ),
        (
            "d_k for √d_k",
            "derive/numbers.py",
            "return Scaled(Scalar(below), x) if above == 1 else Over(x, root)",
            "return Scaled(Scalar(below), x) if above == 1 else Over(x, root**2)",
        ),
        (
            "queries and keys exchanged in the equation",
            "derive/words/products.py",
            "return node(given[left], given[right])",
            "return node(given[right].T, given[left].T) if node is Product else node(given[left], given[right])",
        ),
        (
            "keys that are not transposed",
            "derive/rearranging.py",
            "                return Transposed(made)\n",
            "                return made\n",
        ),
        (
            "a residual sum of the wrong tensor",
            "derive/numbers.py",
            "return Plus(left, right)\n",
            "return Plus(left, left)\n",
        ),
        (
            "the bias left out of an equation",
            "derive/words/products.py",
            'return Plus(made, given["bias"]) if given.has("bias") else made',
            "return made",
        ),
        (
            "another ε in the norms of blocks",
            "derive/words/norms.py",
            'return LayerNorm(given["eps"], given["input"], *vectors)',
            'return LayerNorm(1e-3, given["input"], *vectors)',
        ),
        (
            "the norm's variance over n − 1",
            "equations/norms.py",
            "variance = (centred * centred).mean(dim=-1, keepdim=True)",
            "variance = x.var(dim=-1, keepdim=True)",
        ),
        (
            "a softmax over queries",
            "equations/activations.py",
            "powers.sum(dim=-1, keepdim=True)",
            "powers.sum(dim=-2, keepdim=True)",
        ),
        (
            "GELU by tanh for the exact one",
            "equations/activations.py",
            "return x * (1 + (x / sqrt(2)).erf()) / 2",
            "return x * (1 + (sqrt(2 / pi) * (x + 0.044715 * x**3)).tanh()) / 2",
        ),
        (
            "another number in GELU by tanh",
            "equations/activations.py",
            "x + 0.044715 * x**3)).tanh()",
            "x + 0.0447 * x**3)).tanh()",
        ),
        (
            "heads dealt out in turn",
            "equations/heads.py",
            "tensor.unflatten(-1, (int(size(self.args[1])), -1)).transpose(-3, -2)",
            "tensor.unflatten(-1, (-1, int(size(self.args[1])))).movedim(-1, -3)",
        ),
        (
            "the second token for CLS",
            "equations/algebra.py",
            "tensor[..., int(size(self.args[1])), :]",
            "tensor[..., int(size(self.args[1])) + 1, :]",
        ),
        (
            "a causal mask that hides the token itself",
            "equations/masks.py",
            "masked_fill(j > i, lowest)",
            "masked_fill(j >= i, lowest)",
        ),
        ("a prefix that is one too long", "equations/masks.py", "(j > i) & (j >= prefix)", "(j > i) & (j > prefix)"),
        (
            "pixels of a patch in another order",
            "equations/grids.py",
            "return unfold(image, side, stride=side).transpose(-2, -1)",
            "return unfold(image.flip(1), side, stride=side).transpose(-2, -1)",
        ),
        (
            "a vector over its squared length",
            "equations/embeddings.py",
            "(x * x).sum(dim=-1, keepdim=True).sqrt()",
            "(x * x).sum(dim=-1, keepdim=True)",
        ),
        ("a temperature without its power", "equations/embeddings.py", "return power.exp() * x", "return power * x"),
        ("waves of places that are too slow", "equations/positions.py", "i / 10000 **", "i / 20000 **"),
        # printed equations
        (
            "a transposition that is not printed",
            "equations/algebra.py",
            r'return rf"{{{self.args[0].inside(printer)}}}^{{\top}}"',
            'return rf"{{{self.args[0].inside(printer)}}}"',
        ),
        (
            "a fraction printed upside down",
            "equations/algebra.py",
            r"\frac{{{printer._print(self.args[0])}}}{{{printer._print(self.args[1])}}}",
            r"\frac{{{printer._print(self.args[1])}}}{{{printer._print(self.args[0])}}}",
        ),
        (
            "a sum printed as a difference",
            "equations/algebra.py",
            '" + ".join(argument.summand',
            '" - ".join(argument.summand',
        ),
        (
            "factors printed in reverse",
            "equations/algebra.py",
            "return beside(self.args, printer)",
            "return beside(self.args[::-1], printer)",
        ),
        (
            "another token printed",
            "equations/algebra.py",
            r"_{{[\,{printer._print(self.args[1])}\,]}}",
            r"_{{[\,{printer._print(self.args[1] + 1)}\,]}}",
        ),
        (
            "a norm printed without its root",
            "equations/norms.py",
            r'deviation = rf"\sqrt{{\sigma^2({x})',
            r'deviation = rf"{{\sigma^2({x})',
        ),
        (
            "a mask printed one off",
            "equations/masks.py",
            r"0 & j \le i \\ {lowest} & j > i",
            r"0 & j < i \\ {lowest} & j \ge i",
        ),
        (
            "a power that is not printed",
            "equations/embeddings.py",
            'return rf"e^{{{printer._print(power)}}}',
            'return rf"{{{printer._print(power)}}}',
        ),
        (
            "one sequence printed after the other",
            "equations/tokens.py",
            r'r"\ ;\ ".join(printer._print(argument) for argument in self.args)',
            r'r"\ ;\ ".join(printer._print(argument) for argument in self.args[::-1])',
        ),
        (
            "one function printed for another",
            "equations/activations.py",
            r'word = r"\operatorname{softmax}"',
            r'word = r"\operatorname{ReLU}"',
        ),
        (
            "two tensors of one name",
            "derive/letters.py",
            "self.of[key] = self._unlike(letter, below, above, plain=True)",
            "self.of[key] = letter",
        ),
        # nets
        (
            "the width of the model for that of a head",
            "models/shared/blocks.py",
            "k.transpose(-2, -1) / sqrt(d_k)  # [B, h, S, S]",
            "k.transpose(-2, -1) / sqrt(D)  # [B, h, S, S]",
        ),
        (
            "queries and keys exchanged in the net",
            "models/shared/blocks.py",
            "scores = q @ k.transpose(-2, -1)",
            "scores = k @ q.transpose(-2, -1)",
        ),
        (
            "another ε in the net",
            "models/shared/blocks.py",
            'gelu: str = "exact", eps: float = 1e-6',
            'gelu: str = "exact", eps: float = 1e-4',
        ),
        (
            "the other GELU in the net",
            "models/shared/blocks.py",
            '"tanh" if gelu == "tanh" else "none"',
            '"none" if gelu == "tanh" else "tanh"',
        ),
        ("a mask that lets the next token be seen", "attention/masks/kinds.py", ".triu(1)", ".triu(2)"),
        (
            "a prefix that hides its last token",
            "attention/masks/kinds.py",
            "torch.arange(length, device=device) >= visible)",
            "torch.arange(length, device=device) >= visible - 1)",
        ),
        (
            "patches read column by column",
            "models/vit.py",
            "x.permute(0, 2, 4, 3, 5, 1)",
            "x.permute(0, 4, 2, 3, 5, 1)",
        ),
        (
            "tokens put back one place on",
            "models/mae.py",
            "x = masked.scatter(1, places, x)",
            "x = masked.scatter(1, places.roll(1, 1), x)",
        ),
        # attention
        (
            "another head's attention",
            "attention/__init__.py",
            'result[:, _within(head, record.heads, "head")]',
            'result[:, _within(head, record.heads, "head") - 1]',
        ),
        (
            "another layer's attention",
            "attention/__init__.py",
            'record = records[_within(layer, len(records), "layer")]',
            'record = records[_within(layer, len(records), "layer") - 1]',
        ),
        (
            "another row of attention",
            "attention/__init__.py",
            'else [_within(query, record.queries, "query")]',
            'else [_within(query, record.queries, "query") - 1]',
        ),
        ("rollout in reverse", "attention/__init__.py", "mixed @ product", "product @ mixed"),
        (
            "rollout without the residual",
            "attention/__init__.py",
            "mixed = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype)) / 2",
            "mixed = mean",
        ),
        (
            "rollout of the largest head",
            "attention/__init__.py",
            "mean = weights(trace, layer, part=part).mean(dim=1)",
            "mean = weights(trace, layer, part=part).amax(dim=1)",
        ),
        (
            "the first layer left out of rollout",
            "attention/__init__.py",
            "for layer in range(start, len(records)):",
            "for layer in range(start + (not start), len(records)):",
        ),
        (
            "patches one token on",
            "attention/__init__.py",
            "{picture.first + patch: patch for",
            "{picture.first + patch + 1: patch for",
        ),
        (
            "a causal mask that is replayed one off",
            "recorder/softmaxes.py",
            "device=q.device) > torch.as_tensor(",
            "device=q.device) >= torch.as_tensor(",
        ),
        (
            "the row of the word itself",
            "attention/regions.py",
            "text.start + place - 1",
            "text.start + min(place, text.stop - text.start - 1)",
        ),
        (
            "the wrong scale inside of fused attention",
            "recorder/capture.py",
            "1 / sqrt(q.shape[-1]) if scale is None",
            "1 / sqrt(q.shape[-1] + 1) if scale is None",
        ),
        # masks
        (
            "open for closed",
            "attention/masks/reading.py",
            "return most - highest >= log(",
            "return most - highest < log(",
        ),
        ("another word for a mask", "attention/masks/reading.py", 'return "prefix"', 'return "causal"'),
        (
            "tokens that move what they see",
            "attention/masks/reading.py",
            "(cells & moved).any(dim=1)",
            "(cells.mT & moved).any(dim=1)",
        ),
        (
            "queries and keys of a share exchanged",
            "attention/masks/reading.py",
            "cells[a.start : a.stop, b.start : b.stop]",
            "cells[b.start : b.stop, a.start : a.stop]",
        ),
        (
            "tokens that stand still for those that move",
            "attention/masks/influence.py",
            "(before != after).any(dim=2)",
            "(before == after).any(dim=2)",
        ),
        # cost
        (
            "FLOPs twice",
            "tracing/account.py",
            "flops = 0 if op.layout else cost.flops(op.name,",
            "flops = 0 if op.layout else 2 * cost.flops(op.name,",
        ),
        (
            "parameters counted at each use",
            "tracing/account.py",
            "params=sum([sizes_of[name] for name in fresh])",
            "params=sum([sizes_of[name] for name in names])",
        ),
        (
            "a block too many in a formula",
            "symbols/cost.py",
            "whole += parse(name) * costs[0]",
            "whole += (parse(name) + 1) * costs[0]",
        ),
        (
            "the first block's cost for all blocks and none for the rest",
            "symbols/cost.py",
            "for shape in shapes), sympy.Integer(0)",
            "for shape in shapes[:1]), sympy.Integer(0)",
        ),
        # shapes and symbols
        (
            "probes that are all alike",
            "models/shared/model.py",
            "for probe in self.spec.probes]",
            "for probe in self.spec.probes[:1] * len(self.spec.probes)]",
        ),
        (
            "N for N + 1",
            "equations/tokens.py",
            "length = sum((shape[-2] for shape in shapes), sympy.Integer(0))",
            "length = sum((shape[-2] for shape in shapes[1:]), sympy.Integer(0))",
        ),
        (
            "every two sizes are one",
            "tracing/prove.py",
            "return a == b or vanishes(base_form(str(a), pairs) - base_form(str(b), pairs))",
            "return True",
        ),
        (
            "a derived size that is too large",
            "models/vit.py",
            'derived={"N": "H*W/P**2", "d_k": "D/h"}',
            'derived={"N": "H*W/P", "d_k": "D/h"}',
        ),
        (
            "the meaning of another symbol",
            "symbols/notation.py",
            '"D": "model width: how many',
            '"D": "hidden width of the MLP: how many',
        ),
        ("height for width", "symbols/notation.py", '"W": "width of the picture', '"W": "height of the picture'),
        (
            "the wrong tokens for patches",
            "models/vit.py",
            'Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)',
            'Segment("CLS", 0, 1), Segment("image", 0, sizes["N"])',
        ),
        # photos
        (
            "the crop one pixel off",
            "inputs/images.py",
            "left, top = (photo.width - across) / 2,",
            "left, top = (photo.width - across) / 2 + 1,",
        ),
        (
            "a crop that is not the one that is shown",
            "inputs/images.py",
            "photo.resize((width, height), resample, box=crop.box)",
            "photo.resize((width, height), resample)",
        ),
        (
            "patches in columns",
            "inputs/images.py",
            "for i in range(rows) for j in range(columns)]",
            "for j in range(columns) for i in range(rows)]",
        ),
        ("256 levels for 255", "inputs/images.py", "/ np.float32(255)", "/ np.float32(256)"),
        (
            "mean and deviation exchanged",
            "inputs/tensors.py",
            'card.get("mean", MEAN), card.get("std", STD)',
            'card.get("std", STD), card.get("mean", MEAN)',
        ),
        (
            "rows and columns of patches exchanged",
            "models/shared/model.py",
            'rows, columns = full["H"] // full["P"], full["W"] // full["P"]',
            'columns, rows = full["H"] // full["P"], full["W"] // full["P"]',
        ),
        # answers
        (
            "a softmax of half the logits",
            "models/shared/results.py",
            '"probabilities": logits[0].softmax(-1).tolist()}',
            '"probabilities": (logits[0] / 2).softmax(-1).tolist()}',
        ),
        (
            "the first token's answer for the last one's",
            "models/shared/results.py",
            "shares = logits[0, -1].softmax(-1)",
            "shares = logits[0, 0].softmax(-1)",
        ),
        (
            "the least likely label",
            "models/shared/results.py",
            "labels = logits[0].argmax(-1)",
            "labels = logits[0].argmin(-1)",
        ),
        (
            "sentences in another order",
            "models/shared/results.py",
            '"sentences": list(inputs.sentences), "prob',
            '"sentences": list(inputs.sentences)[::-1], "prob',
        ),
        (
            "the likeliest tokens by their number",
            "models/shared/results.py",
            "for i in best.indices.tolist()]\n    unit",
            "for i in sorted(best.indices.tolist())]\n    unit",
        ),
        (
            "two names of classes exchanged",
            "models/weights/vit.json",
            '"frog",\n    "horse",\n    "ship"',
            '"horse",\n    "frog",\n    "ship"',
        ),
        (
            "two names without a photo exchanged",
            "models/weights/vit.json",
            '"ship",\n    "truck"',
            '"truck",\n    "ship"',
        ),
        ("two shapes exchanged", "models/weights/segmenter.json", '"cross",\n    "star"', '"star",\n    "cross"'),
        ("two colours exchanged", "models/weights/clip.json", '"red",\n    "orange"', '"orange",\n    "red"'),
        ("two characters exchanged", "models/weights/nanogpt.json", "ABCDEFGHIJ", "ABCDFEGHIJ"),
        (
            "a caption that is written backwards",
            "inputs/captions.py",
            "torch.cat([tokens, best[:, None]], dim=1)",
            "torch.cat([best[:, None], tokens], dim=1)",
        ),
        (
            "the anomaly without its root",
            "models/shared/anomaly.py",
            ".square().mean(dim=-1).sqrt()",
            ".square().mean(dim=-1)",
        ),
        (
            "the anomaly in shares, called levels",
            "models/shared/anomaly.py",
            "* float(std.mean()) * 255",
            "* float(std.mean())",
        ),
        (
            "the anomaly of one round",
            "models/shared/anomaly.py",
            "ROUNDS, TRUSTED = 3, 0.85",
            "ROUNDS, TRUSTED = 1, 0.85",
        ),
        (
            "rows and columns of the painted picture exchanged",
            "models/shared/anomaly.py",
            "grid.permute(0, 5, 1, 3, 2, 4)",
            "grid.permute(0, 5, 1, 4, 2, 3)",
        ),
        # proofs
        ("a tolerance of a tenth", "record/steps.py", '"float32": 1e-5', '"float32": 0.1'),
        (
            "whatever is undefined is proven",
            "record/steps.py",
            'return "proven" if error <= tolerance(dtype) else "disproven"',
            'return "disproven" if error > tolerance(dtype) else "proven"',
        ),
        (
            "a tensor proven by itself",
            "tracing/prove.py",
            "computed, traced = _executed(line.equation, value, sizes), value.tensor(line.tensor.key)",
            "computed, traced = value.tensor(line.tensor.key).double(), value.tensor(line.tensor.key)",
        ),
        (
            "the least difference for the largest",
            "common/difference.py",
            "largest = difference.max()",
            "largest = difference.min()",
        ),
        (
            "a step that hides its ops",
            "derive/__init__.py",
            "return tuple(sorted(found - owned))",
            "return tuple(sorted(found - owned))[-1:]",
        ),
        # sentences
        ("a wrong bound of GELU", "derive/whys.py", "between -0.17 and 0", "between -0.27 and 0"),
        ("a wrong bound of GELU by tanh", "derive/whys.py", "between -0.18 and 0", "between -0.08 and 0"),
        (
            "a wrong share of the weights",
            "derive/whys.py",
            "two products of the MLP hold twice as many",
            "two products of the MLP hold three times as many",
        ),
        ("a wrong range of cosines", "models/clip.py", "Cosines lie between -1 and 1", "Cosines lie between 0 and 1"),
    )
]
"""Each alone; not one may be overlooked."""
