"""Mutations of our own models' nets: another computation than that of the textbook."""

from __future__ import annotations

from tests.mutation.rules import code

RULES = (
    code(
        "the width of the model for that of a head",
        {"$q @ $k.transpose(-2, -1) / sqrt($d)": "$q @ $k.transpose(-2, -1) / sqrt(D)"},
        within="blocks.Attention.forward",
    ),
    code(
        "queries and keys exchanged in the net",
        {"$q @ $k.transpose(-2, -1)": "$k @ $q.transpose(-2, -1)"},
        within="blocks.Attention.forward",
    ),
    code("another ε in the net", {"1e-6": "1e-4"}, within="blocks.Block"),
    code(
        "the other GELU in the net",
        {'"tanh" if $x else "none"': '"none" if $x else "tanh"'},
        within="blocks.MLP",
    ),
    code(
        "a mask that lets the next token be seen",
        {"$x.triu($past + 1)": "$x.triu($past + 2)"},
        within="blocks.causal",
    ),
    code("a prefix that hides its last token", {"$x >= $visible": "$x >= $visible - 1"}, within="blocks.prefix"),
    code(
        "patches read column by column",
        {"$x.permute(0, 2, 4, 3, 5, 1)": "$x.permute(0, 4, 2, 3, 5, 1)"},
        within="ViT.forward",
    ),
    code(
        "tokens put back one place on",
        {"$x.scatter(1, $places, $y)": "$x.scatter(1, $places.roll(1, 1), $y)"},
        within="MAE.forward",
    ),
)
