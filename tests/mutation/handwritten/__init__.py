"""Handwritten mutants: each a small lie of the kind that a tool like this could tell.

Every module here has RULES, and is found by itself. How a rule is written stands in `mutation/rules.py`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tests.mutation.rules import Rule

HANDWRITTEN_RULES: tuple[Rule, ...] = tuple(
    rule
    for module in sorted(module.name for module in iter_modules(__path__))
    for rule in import_module(f"{__name__}.{module}").RULES
)
"""Each alone; not one may be overlooked."""
