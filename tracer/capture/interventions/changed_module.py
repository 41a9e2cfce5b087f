"""A copy of a module that shares its parameters, with interventions in every forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import nn

from tracer.capture.interventions.call_sites import Site
from tracer.capture.interventions.mode import Intervention, intervening

Module = TypeVar("Module", bound=nn.Module)


def with_interventions(module: Module, interventions: Iterable[Intervention]) -> Module:
    """Return a copy of a module that shares its parameters and submodules, whose forward has these interventions.

    The module itself is left alone. Copies of the copy, also deep and pickled ones, have them, too.
    """
    at: dict[Site, tuple[Intervention, ...]] = {}
    for intervention in interventions:
        at[intervention.site] = (*at.get(intervention.site, ()), intervention)
    changed: Module = object.__new__(_class(type(module)))  # type: ignore[arg-type, assignment] # a subclass
    vars(changed).update(vars(module))
    vars(changed)["_interventions"] = at
    if "forward" in vars(module):  # a function that is traced like a module
        vars(changed)["forward"] = _wrap(vars(module)["forward"], changed)
    return changed


@functools.cache
def _class(kind: type[Any]) -> type[nn.Module]:
    """Return a subclass by the same name whose forward runs under the module's interventions."""

    def forward(self, *args, **kwargs):
        with intervening(self, self._interventions):
            return kind.forward(self, *args, **kwargs)

    functools.update_wrapper(forward, kind.forward)
    own = {"forward": forward, "__reduce_ex__": _reduce, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)


def _reduce(module: nn.Module, protocol: Any) -> tuple:
    """Return how pickle and copy rebuild the module: from the one without interventions, and these."""
    kind = type(module).__mro__[1]
    plain = object.__new__(kind)
    vars(plain).update(vars(module))
    interventions = vars(plain).pop("_interventions")
    if "forward" in vars(plain):
        vars(plain)["forward"] = vars(plain)["forward"].__wrapped__
    return with_interventions, (plain, [each for some in interventions.values() for each in some])


def _wrap(function: Callable, module: nn.Module) -> Callable:
    @functools.wraps(function)
    def forward(*args, **kwargs):
        with intervening(module, module._interventions):  # type: ignore[arg-type] # no submodule
            return function(*args, **kwargs)

    return forward
