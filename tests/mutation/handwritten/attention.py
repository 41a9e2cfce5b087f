"""Mutations of attention maps, rollout and masks."""

from __future__ import annotations

from tests.mutation.rules import code, text

RULES = (
    code("another head's attention", {'within($x, $n, "head")': 'within($x, $n, "head") - 1'}, within="weights"),
    code("another layer's attention", {'within($x, $n, "layer")': 'within($x, $n, "layer") - 1'}, within="weights"),
    code("another row of attention", {'within($x, $n, "query")': 'within($x, $n, "query") - 1'}, within="weights"),
    code("rollout in reverse", {"$mixed @ $product": "$product @ $mixed"}, within="attention.rollout"),
    code("rollout without the residual", {"($x + torch.eye(*$a, dtype=$b)) / 2": "$x"}, within="attention.rollout"),
    code("rollout of the largest head", {"$x.mean(dim=1)": "$x.amax(dim=1)"}, within="attention.rollout"),
    code(
        "the first layer left out of rollout",
        {"range($start, len($x))": "range($start + (not $start), len($x))"},
        within="attention.rollout",
    ),
    code("patches one token on", {"$picture.first + $x": "$picture.first + $x + 1"}, within="attention.places"),
    code(
        "a causal mask that is replayed one off",
        {"$keys > torch.as_tensor($x, device=$d)[:, None]": "$keys >= torch.as_tensor($x, device=$d)[:, None]"},
        within="scores_rows",
    ),
    code(
        "the row of the word itself",
        {"$text.start + $place - 1": "$text.start + min($place, $text.stop - $text.start - 1)"},
        within="region",
    ),
    code(
        "the wrong scale inside of fused attention",
        {"1 / sqrt($q.shape[-1]) if $x is None else $y": "1 / sqrt($q.shape[-1] + 1) if $x is None else $y"},
        within="AttentionDetector._record_fused",
    ),
    code("open for closed", {"$a - $b >= log($x)": "$a - $b < log($x)"}, within="masks._open"),
    text("another word for a mask", {"prefix": "causal"}, within="masks.kind"),
    code(
        "tokens that move what they see",
        {"($cells & $moved).any(dim=1)": "($cells.mT & $moved).any(dim=1)"},
        within="reach",
    ),
    code(
        "queries and keys of a share exchanged",
        {"$x[$a.start:$a.stop, $b.start:$b.stop]": "$x[$b.start:$b.stop, $a.start:$a.stop]"},
        within="blocks",
    ),
    code("tokens that stand still for those that move", {"$a != $b": "$a == $b"}, within="masks._differing"),
    code(
        "rollout from keys to queries",
        {"$x + torch.eye(*$a, dtype=$b)": "$x.mT + torch.eye(*$a, dtype=$b)"},
        within="attention.rollout",
    ),
    code(
        "scores before the mask with the mask in them",
        {"_without_masks($trace, $record)": "$record.chain"},
        within="masks.whole",
    ),
    code(
        "the first head's rows for all heads",
        {"$x[:, $queries]": "$x[:1, $queries].expand(record.heads, -1, -1)"},
        within="masks.whole",
    ),
    code(
        "the least weight of a closed key for the largest",
        {"float($closed.max()) if $n else None": "float($closed.min()) if $n else None"},
        within="masks.rows",
    ),
)
