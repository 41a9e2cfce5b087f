"""Models and runs that all visitors share: each model is loaded once, each run computed once, all in one queue.

Models and the runs of samples are kept here, within bounds. A visitor's run is kept for as long as a session holds it,
and shared only with visitors who uploaded the very same input. Nothing here imports torch before a model is asked for.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary, finalize, ref

import tracer
from pages.jobs import model_process, model_worker, render_gate, single_flight
from pages.jobs.model_worker import Options
from tracer import models, zoo
from tracer.inputs.model_inputs import samples
from tracer.record import Decomposition, Trace
from tracer.utils.cache import Cache
from tracer.utils.devices import default_device
from tracer.utils.job_queue import VISITOR, JobQueue
from tracer.utils.job_queue import doing as telling
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer import tracing
    from tracer.tracing import transfer
    from tracer.zoo import downloads
else:  # imported when first used
    tracing = lazy_import("tracer.tracing")
    transfer = lazy_import("tracer.tracing.transfer")
    downloads = lazy_import("tracer.zoo.downloads")


OWN_SAMPLE = "its own"
"""The name of the sample of a model that has one of its own, such as a text."""
LIBRARY_MODELS = 2
"""How many models of libraries are in memory at once, for all visitors together."""
RUN_MESSAGE = model_process.MESSAGE
LOADING = "Loading the model"
OPENING_MESSAGE = "Opening the operation and running its primitives"
CHANGE = "change"
"""Option that holds the changes of a run, as a tuple of texts."""
LARGE_BYTES = 8 * 2**20
"""Bytes of tensors above which a run is large."""
EACH_OP = 4096
"""Bytes that the record of one op takes, about."""

_one_at_a_time, _loading, _asking = Lock(), Lock(), Lock()
loading = JobQueue(1)
"""Where models of libraries are downloaded and loaded, one at a time: visitors together can't fill the memory."""

Result = TypeVar("Result")


def _tensors(trace: Trace) -> int:
    """Return the size of a run's tensors in bytes. Runs of one model on its samples share the records of their ops."""
    return sum(value.nbytes for value in trace.values.values())


def _bytes(trace: Trace) -> int:
    return _tensors(trace) + EACH_OP * len(trace.ops)


def _size(opened: tuple[Decomposition, ...]) -> int:
    return EACH_OP * sum(1 + len(decomposition.primitives) for decomposition in opened)


_models, _foreign, _foreign_runs = Cache(24), Cache(LIBRARY_MODELS), Cache(LIBRARY_MODELS)
_resized_models = Cache(256 * 2**20, lambda model: 4 * sum(parameter.numel() for parameter in model.net.parameters()))
"""Our models at sizes that visitors chose: they never push out the shipped ones."""
_samples = Cache(104 * 2**20, _tensors)
"""Samples of our models, of which those run ahead take 90 MB: a bound below would have them run again and again."""
_op_primitives = Cache(64 * 2**20, _size)
_user_runs = Cache(384 * 2**20, _bytes)
"""Runs of visitors: two for each student of a class, the plain and the changed one."""
_contents: WeakValueDictionary[Hashable, "Content"] = WeakValueDictionary()
RESULT_COUNTS = {
    "heads": 128,
    "lens": 128,
    "masked": 256,
    "moved": 1024,
    "closed": 256,
    "placed": 64,
    "noted": 128,
    "hidden": 256,
    "survey": 32,
    "costs": 64,
}
"""How many further results on runs are kept, by their kind."""
_results = {what: Cache(most) for what, most in RESULT_COUNTS.items()}


def split_options(name: str, options: Options) -> tuple[dict, dict]:
    """Return the options and sizes that a model is loaded with, and the sizes of its input."""
    of_input = ("B",) if zoo.is_foreign(name) else models.spec_of(name).runs
    plain = without_changes(options)
    parts = [{key: value for key, value in plain if (key in of_input) is its} for its in (False, True)]
    return parts[0], parts[1]


def changes(options: Options) -> tuple[str, ...]:
    """Return the changes of runs with these options, as texts."""
    return dict(options).get(CHANGE, ())


def without_changes(options: Options) -> Options:
    """Return the options of the plain run."""
    return tuple((key, value) for key, value in options if key != CHANGE)


def with_changes(options: Options, texts: Sequence[str]) -> Options:
    """Return the options with these changes in place of their own."""
    change = ((CHANGE, tuple(texts)),) if texts else ()
    return tuple(sorted((*without_changes(options), *change)))


def with_options(options: Options, **more: object) -> Options:
    """Return options and sizes with some of them set."""
    return tuple(sorted({**dict(options), **more}.items()))


def of_lines(options: Options) -> Options:
    """Return the options that determine the lines of a run: not the content of its photo, or the words of its text."""
    remaining = [
        text for text in changes(options) if not text.startswith(("image=", "text=")) or text.endswith(",removed)")
    ]
    return with_changes(options, remaining)


def load(name: str, options: Options = ()) -> Any:
    """Return a model, loaded once for all visitors; one with changes shares the weights of the plain one.

    Raise ValueError in one sentence for changes of unknown lines, or that do not fit theirs.
    """
    of_model = tuple(split_options(name, options)[0].items())
    model = _library_model(name, of_model) if zoo.is_foreign(name) else _our_model(name, of_model)
    return model_worker.with_changes(model, changes(options))


def _our_model(name: str, options: Options):
    key, sizes = (name, options), models.spec_of(name).sizes
    store = _resized_models if any(option in sizes for option, _ in options) else _models
    if (model := store.get(key)) is not None:
        return model
    with _loading:
        if (model := store.get(key)) is None:
            store.put(key, model := model_worker.load_model(name, options, default_device()))
        return model


def _library_model(name: str, options: Options):
    """Load a library's model; few are kept."""

    def make():
        with telling(LOADING), _one_at_a_time:
            return tracer.load(name, device=default_device(), **dict(options))

    return single_flight.once(_foreign, (name, options), make, LOADING, where=loading, instead=True)


def loaded_model(name: str, options: Options) -> Any:
    """Return a library's model if it is in memory; runs of our models hold their own."""
    return _foreign.get((name, tuple(split_options(name, options)[0].items())))


def fetch(name: str, download) -> None:
    """Download the weights of a library's model, where `tracer.zoo.downloads` finds them."""
    fetching = partial(downloads.fetch_in_subprocess, name, download)
    single_flight.once(None, ("fetch", name), fetching, f"Downloading {name}", where=loading, instead=True)


def sample_names(model: str) -> list[str]:
    """Return the samples that suit a model; a text model has one of its own."""
    return list(samples(models.samples(model))) or [OWN_SAMPLE]


def first_sample(model: str) -> str:
    """Return the first sample that suits a model."""
    return sample_names(model)[0]


def of_sample(name: str, options: Options, sample: str, rank: int = VISITOR) -> Trace:
    """Return the run of a model on one of its samples, computed once for all visitors."""
    key, store = (name, options, sample), _samples
    if zoo.is_foreign(name):
        load(name, without_changes(options))  # in a line of its own, before this has its turn
        store = _user_runs if changes(options) else _foreign_runs
    elif options:
        store = _user_runs  # what few ask for does not push out the samples as shipped
    where = queue_of(name, options) if rank == VISITOR else None

    def make() -> Trace:
        return _run_model_in(where, name, options, _sample_input(name, options, sample))

    return single_flight.once(store, key, make, RUN_MESSAGE, rank, where, instead=True)


def in_line(name: str, options: Options) -> tuple:
    """Return a model and its run on its first sample, for work that holds its slot in the queue: the cached run, or one
    that is computed now and cached."""
    key, model = (name, options, first_sample(name)), load(name, options)
    store = _user_runs if options else _samples
    if (run := store.get(key)) is None:
        store.put(key, run := _run_model(model, **_sample_input(*key)))
    return model, run


def of_first_sample(name: str, options: Options, **how) -> Trace:
    """Run a model on its first sample, for work in the background; the run is not cached."""
    return load(name, options).trace(**_sample_input(name, options, first_sample(name)), **how)


def check_in_process(
    name: str, options: Options, keep: int, plain: Mapping[str, Any] | None
) -> model_worker.ModelCheck | None:
    """Return the check of a model's lines on other runs, from the process of checks; None where that does not make
    it. `plain` are the checks of the model without changes, where they are known."""
    if not has_own_sizes(name, options) or not model_process.is_ready():
        return None
    return model_process.check(
        _process_key(name, options), _sample_input(name, options, first_sample(name)) | {"keep": keep}, plain
    )


def _sample_input(name: str, options: Options, sample: str) -> dict[str, Any]:
    """Return the arguments of `Model.trace` for a run on a sample."""
    loader = samples(models.samples(name)).get(sample)
    return {**split_options(name, options)[1], **({} if loader is None else {"image": loader()})}


def large(name: str, sample: str) -> bool:
    """Return whether the run of a model on a sample is cached and large."""
    return (run := _samples.get((name, (), sample))) is not None and _tensors(run) > LARGE_BYTES


class Content:
    """Digest of a visitor's input, one object for all who uploaded the same bytes. With its last holder every run that
    was computed from it is dropped."""

    def __init__(self, digest: Hashable):
        self.digest = digest
        self._photo: Callable[[], object] = lambda: None  # a weak reference: runs that are let go of take it along

    def share_photo(self, trace: Trace) -> Trace:
        """Return the run with its photo replaced by the one that other runs of this content hold: each records the
        whole photo."""
        if trace.picture is None:
            return trace
        photo, known = trace.values[trace.picture.value], self._photo()
        if known is not None and photo.equal(known):
            return replace(trace, values={**trace.values, trace.picture.value: known})
        self._photo = ref(photo)
        return trace


def content(digest: Hashable) -> Content:
    """Return the content of that digest, which is equal for the very same photo and text only."""
    with _asking:
        if (contents := _contents.get(digest)) is None:
            contents = _contents[digest] = Content(digest)
            finalize(contents, _forget, digest).atexit = False
        return contents


def _forget(digest: Hashable) -> None:
    """Drop everything that was computed from a content, and the texts that models wrote for pictures, of any owner."""
    _user_runs.forget(lambda key: key[2] == digest)
    for model in _models.values():
        model.forget_captions()


def of_given(name: str, options: Options, what: Content, user_input: dict) -> Trace:
    """Return the run of a model on a visitor's input; `user_input` are the arguments of `Model.trace`. It may be run
    anew when the visitor comes back to it, since all such runs share a bound."""
    key, where = (name, options, what.digest), queue_of(name, options)
    make = partial(_run_content, where, name, options, what, user_input)
    return single_flight.once(_user_runs, key, make, RUN_MESSAGE, where=where, instead=True)


def given_beside(name: str, options: Options, what: Content, user_input: dict) -> AbstractContextManager[None]:
    """Return the context in which a run that `of_given` is asked for afterwards waits in the queue beside another
    one."""
    key, where = (name, options, what.digest), queue_of(name, options)
    make = partial(_run_content, where, name, options, what, user_input)
    return single_flight.beside(_user_runs, key, make, RUN_MESSAGE, where)


def _run_content(where: JobQueue | None, name: str, options: Options, content: Content, user_input: dict) -> Trace:
    """Return a run on a visitor's content, which is held until the run is kept: one who left meanwhile takes it
    along."""
    return content.share_photo(_run_model_in(where, name, options, user_input))


def has_own_sizes(name: str, options: Options) -> bool:
    """Return whether these are runs of one of our models at the sizes that it is shipped with: others may need more
    memory than a server has twice, and take long enough that a visitor wants to see their progress."""
    return not zoo.is_foreign(name) and not any(key in models.spec_of(name).sizes for key, _ in options)


def queue_of(name: str, options: Options) -> JobQueue | None:
    """Return the queue of the processes of runs, where one serves and takes this run; None where it is computed here.

    The first is started where another visitor's run goes on here.
    """
    if not has_own_sizes(name, options):
        return None
    if model_process.is_ready():
        return model_process.line
    if single_flight.line.serves_another(render_gate.owner()):
        model_process.start()
    return None


def measure(
    function: Callable[..., Result], name: str, options: Options, user_input: dict[str, Any], *arguments: Any
) -> Result:
    """Return `function(model, inputs, *arguments)` of a model and a visitor's input: in a process of models where one
    serves, to which the arguments are sent, else here."""
    if has_own_sizes(name, options) and model_process.is_ready():
        result = model_process.measure(function, _process_key(name, options), user_input, *arguments)
        if result is not None:
            return result
    model = load(name, options)
    return function(model, model.inputs(**user_input), *arguments)


def _run_model_in(where: JobQueue | None, name: str, options: Options, user_input: dict[str, Any]) -> Trace:
    """Return a run with every step verified, in the process whose queue this is, else here."""
    if where is None:
        return _run_model(load(name, options), **user_input)
    return model_process.run_model(_process_key(name, options), user_input, load(name, options))


def _process_key(name: str, options: Options) -> model_worker.Key:
    """Return a model by what the processes load it with, and the changes of its runs."""
    return name, tuple(split_options(name, options)[0].items()), changes(options)


def _run_model(model, **user_input) -> Trace:
    """Return a run of a loaded model with every step verified. Models of libraries are too large to keep the tensors of
    all steps: they are held while the steps are verified, one model at a time, and then only the first are kept."""
    if not zoo.is_foreign(model.name):
        return model.trace(**user_input)
    with _one_at_a_time:
        return transfer.lighten(model.trace(**user_input, keep=tracing.AT_HAND), tracing.KEEP)


def decompose(model, op: int, **user_input) -> tuple[Decomposition, ...]:
    """Return the primitives of one op of a loaded model's run."""
    return single_flight.in_turn(lambda: _open(model, op, **user_input), OPENING_MESSAGE)


def _open(model, op: int, **user_input) -> tuple[Decomposition, ...]:
    return model.trace(**user_input, prove=False, primitives=(op,)).decompositions


def decompose_sample(name: str, options: Options, sample: str, op: int) -> tuple[Decomposition, ...]:
    """Return the primitives of one op of a sample's run, computed once for all visitors."""

    def make() -> tuple[Decomposition, ...]:
        return _open(load(name, options), op, **_sample_input(name, options, sample))

    return single_flight.once(_op_primitives, (name, options, sample, op), make, OPENING_MESSAGE)


def known_result(what: str, key: Hashable) -> Any | None:
    """Return a further result on a sample if it is cached, else None."""
    return _results[what].get((what, key))


def shared_result(
    what: str,
    key: Hashable,
    make: Callable[[], Result],
    doing: str,
    known: Result | None = None,
    rank: int = VISITOR,
    where: JobQueue | None = None,
) -> Result:
    """Return a further result on a sample, computed once for all visitors; `what` names its kind, such as "moved". A
    value that is `known` already is stored unchanged."""
    store = _results[what]
    if known is not None:
        store.put((what, key), known)
    return single_flight.once(store, (what, key), make, doing, rank, where)
