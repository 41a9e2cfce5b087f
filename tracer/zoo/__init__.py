"""Models of libraries, by name: `torchvision:vit_b_16`, `timm:NAME`, `hf:ID` or `hf:` and a local folder.

Every file below this folder that has a `PREFIX` is a library, found by itself and imported only when it is used. It
states the `PACKAGE` that must be installed and `EXAMPLES`, names and what they are; `spec(id)` describes a model, and
`load_pretrained(id, spec, sizes)` returns the net or None, the facts of its card, and the source of its weights.
`download(id)` says what its weights cost, `here(id)` whether they are on this machine, `fetch(id)` loads them,
`names()` lists all that the library has, and `check_no_folder(id)`, where there is one, refuses a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module, util
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from tracer.utils.errors import limits, quote, reason
from tracer.utils.files import read_literals
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.shapes import variation
    from tracer.spec import checkpoints
    from tracer.spec.spec import Model, Spec
    from tracer.zoo import user_factory
else:  # imported when first used
    variation = lazy_import("tracer.shapes.variation")
    checkpoints = lazy_import("tracer.spec.checkpoints")
    user_factory = lazy_import("tracer.zoo.user_factory")


class NoModel(ValueError):
    """A library's name for something other than a model: a part of one, or one that can't be run by itself."""


class Library(NamedTuple):
    """A file of this folder: the package that it needs, and example names with descriptions."""

    file: str
    package: str
    examples: dict[str, str]


@lru_cache(maxsize=1)
def libraries() -> dict[str, Library]:
    """Return the libraries by prefix, read without running their files."""
    by_prefix = {}
    for name, path in _files(files(__name__)):
        literals = read_literals(path)
        if "PREFIX" in literals:
            by_prefix[literals["PREFIX"]] = Library(name, literals["PACKAGE"], literals["EXAMPLES"])
    return by_prefix


def _files(folder: Traversable, package: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the module name, relative to this package, and the path of each Python file below a folder."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            yield from _files(path, f"{package}{path.name}.")
        elif path.name.endswith(".py"):
            yield package + path.name.removesuffix(".py"), path


def is_foreign(name: str) -> bool:
    """Return whether a name is that of a library's model: it has a colon."""
    return ":" in name


def available(prefix: str) -> bool:
    """Return whether the library is installed, without importing it."""
    return util.find_spec(libraries()[prefix].package) is not None


def source_of(name: str) -> tuple[ModuleType, str]:
    """Return the library's module and the model's name in it. Raise ValueError for an unknown prefix, a library that
    is not installed, or a model that this server does not offer."""
    limits().check_model(name)
    prefix, _, id = name.partition(":")
    if prefix not in libraries():
        near = get_close_matches(prefix, libraries(), n=1, cutoff=0.6)
        known = ", ".join(f"{library}:…" for library in libraries())
        hint = f"did you mean {near[0]}:{id}?" if near else f"expected one of {known}"
        raise ValueError(f"there is no library {quote(prefix)} (in {quote(name)}); {hint}")
    library = libraries()[prefix]
    if not available(prefix):
        package = library.package
        raise ValueError(f"{quote(name)} needs the package {package}, which is not installed: pip install {package}")
    return import_module(f"{__name__}.{library.file}"), id


def check_no_folder(name: str) -> None:
    """Raise ValueError for a name that a library would look up in a folder of this machine. The message depends on the
    name alone, and not on whether there is such a folder."""
    source, id = source_of(name)
    if hasattr(source, "check_no_folder"):
        source.check_no_folder(id)


def spec_of(name: str) -> Spec:
    """Return the `Spec` of a library's model. Raise ValueError if there is no such model."""
    source, id = source_of(name)
    spec = source.spec(id)
    return replace(spec, hints=(*spec.hints, *user_factory.intents_of(name)))


def summary(name: str) -> str:
    """Return a description of the model in a few words; "" if it is not among the examples."""
    return examples().get(name, "")


@lru_cache(maxsize=1)
def examples() -> dict[str, str]:
    """Return example names and their descriptions, of the installed libraries; no library is imported for it."""
    return {
        f"{prefix}:{id}": description
        for prefix, library in libraries().items()
        if available(prefix)
        for id, description in library.examples.items()
    }


def tiny(name: str) -> dict[str, Any]:
    """Return sizes at which the model's proofs take no time."""
    spec = spec_of(name)
    return {symbol: size for symbol, size in spec.tiny.items() if symbol not in spec.runs}


def load(name: str, *, weights=None, values: bool = True, **config) -> Model:
    """Load a library's model, ready to run; see `tracer.load`.

    With the library's own weights where those are on this machine or can be downloaded, else with seeded random
    ones; `model.weights` says which, and why. At other sizes always with seeded random weights. Without `values`, and
    where a configuration stands alone that is too large for weights, it is on the device `meta`.
    """
    from tracer.spec.spec import Model, build_seeded, written_out  # loads torch

    (source, id), spec = source_of(name), spec_of(name)
    checkpoints.check_config(spec, name, config)
    full, without = {**spec.defaults, **config}, {**spec.defaults, **written_out(spec), **config}
    try:
        if not values:
            return Model.without_weights(name, spec, without)
        checkpoints.check_memory(spec, name, full)
    except variation.TooLarge as error:
        if weights is None and getattr(source, "is_configuration", lambda id: False)(id):
            model = Model.without_weights(name, spec, without)
            return replace(model, weights=f"{model.weights}, since {error}")
        raise
    except Exception as error:  # however the library says that sizes don't fit together
        sizes_text = ", ".join(f"{symbol}={value}" for symbol, value in config.items())
        raise ValueError(f"{quote(name)} can't be built with {sizes_text or 'its sizes'}: {reason(error)}") from error
    net, card, origin = None, None, "seeded random weights"
    if weights is None and all(full[symbol] == value for symbol, value in spec.sizes.items()):
        net, card, origin = source.load_pretrained(id, spec, full)
    if net is None:
        net = build_seeded(spec.net, full)
    if weights is not None:
        origin = checkpoints.place(net, weights)
    return Model.of(name, spec, net, full, weights=origin, card=card)
