"""Likely mistakes that models of libraries make on purpose, by name, with the reason.

The rules of `tracer.diagnostics.findings` list it as acknowledged.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from tracer.textbook.hints import Hint

UNSCALED_NOTE = (
    "Scores are not scaled: the scale is a part of the first weights of the queries, which are smaller ({})."
)
T5 = UNSCALED_NOTE.format("Raffel et al. 2020, code of T5")
INTENTS = (
    (
        "*",
        Hint(
            finding="parameter unused",
            intent="Classes of libraries hold parameters for more uses than this run: hidden patches in training, other"
            " inputs, other heads.",
        ),
    ),
    ("hf:*", Hint(module="*.SelfAttention", finding="scores scale", intent=T5)),
    ("hf:*", Hint(module="*.EncDecAttention", finding="scores scale", intent=T5)),
    (
        "hf:longt5",
        Hint(
            module="*.LocalSelfAttention",
            finding="mask empty row",
            intent="The text is padded to whole blocks; the rows behind its end are cut off again (Guo et al. 2022).",
        ),
    ),
    ("hf:*gpt*neo*", Hint(finding="scores scale", intent=UNSCALED_NOTE.format("Black et al. 2021, code of GPT-Neo"))),
)
"""Patterns of names, each with a hint for models of these names."""


def intents_of(name: str) -> tuple[Hint, ...]:
    """Return the hints for a model of a library that acknowledge findings."""
    return tuple(hint for pattern, hint in INTENTS if fnmatchcase(name, pattern))
