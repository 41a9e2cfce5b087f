"""Tokenizations of each kind: every step verified; pictures of video, sound, series and points, by other code."""

from functools import cache

import numpy as np
import pytest
import torch

from tests.support.verified import assert_comments
from tracer.figures import media as series_charts
from tracer.figures.media import envelope
from tracer.inputs import synthetic
from tracer.inputs.audio import SYNTHETIC_SOUNDS, lesson
from tracer.inputs.model_inputs import Inputs, samples
from tracer.inputs.synthetic import SERIES
from tracer.latex_reader.evaluator import names
from tracer.lessons.tokenization import (
    PROBES,
    SHARED_SIZES,
    TokenModel,
    before,
    block,
    pictures,
    points,
    series,
    sound,
    text,
    trace,
    video,
)
from tracer.verify.checks import printed

KINDS = {"text": text, "pictures": pictures, "video": video, "sound": sound, "series": series, "points": points}
WAYS = {(kind, way.name): way for kind, module in KINDS.items() for way in module.WAYS}
CHIRP, MELODY = SYNTHETIC_SOUNDS["chirp"](), SYNTHETIC_SOUNDS["melody"]()
HORSE = samples("photos")["horse"]()
RUNS = {
    **{("text", way.name): lambda name=way.name: text.looked_up(name, [3, 1, 4, 1, 5], 300) for way in text.WAYS},
    ("text", "characters"): lambda: text.trace_characters("hello", ("[UNK]", "e", "h", "o")),
    ("pictures", "patches"): lambda: pictures.patches(HORSE, 16),
    ("pictures", "codes"): lambda: pictures.codes(HORSE, 16),
    ("video", "frames"): lambda: video.frames(),
    ("video", "tubelets"): lambda: video.tubelets(2),
    ("sound", "frames"): lambda: sound.trace_frames(CHIRP),
    ("sound", "codes"): lambda: sound.trace_codes(MELODY[:5000], 16),
    ("series", "patches"): lambda: series.trace_patches(SERIES["trend and season"]()[:90], 8),
    ("series", "bins"): lambda: series.trace_bins(SERIES["one outlier"](), 8),
    ("points", "groups"): lambda: points.trace_groups(synthetic.CLOUDS["torus"](), 16),
    ("points", "codes"): lambda: points.trace_codes(synthetic.CLOUDS["cube"](), 32),
}
"""One run of each way, on an input of the page."""
both = pytest.mark.parametrize("name", WAYS, ids="-".join)


@cache
def run(name):
    return RUNS[name]()


@cache
def random_run(name):
    """Return the net, its inputs and the trace of another run of a tokenization: at sizes of a probe, on random
    numbers."""
    way, sizes = WAYS[name], WAYS[name].probes[2] | {"B": 2}
    sizes |= {"F": 3} if "F" in sizes else {}  # few enough that all tensors are kept
    net, args = way.build(sizes | {"D": SHARED_SIZES["D"]})
    return TokenModel(net.eval(), block()), args, trace(way, net, *args, **sizes)


@both
def test_every_step_is_verified_at_two_inputs_and_ends_in_tokens(name):
    way = WAYS[name]
    assert {one.title for one in way.hints if one.title} <= {step.title for step in run(name).steps}
    for made in (run(name), random_run(name)[2]):
        assert {step.verdict for step in made.steps} == {"verified"} and made.notes == ()
        assert all(step.checked >= 2 for step in made.steps)
        assert not [step for step in made.steps if "?" in step.symbolic or "kernel" in step.note]
        assert all(step.why.endswith(".") and "raw" not in step.latex for step in before(made))
        sizes = {size.name: size.value for size in made.symbols}
        assert before(made)[-1].symbolic == ("B", "n", "D") == made.steps[-1].symbolic
        assert tuple(made.output.shape) == (sizes["B"], sizes["n"], SHARED_SIZES["D"])
        assert all(len(things) == 1 for things in names(made.steps).values())


@both
def test_what_is_printed_is_what_ran(name):
    net, args, made = random_run(name)
    assert dict(printed.differences(made, net, Inputs(args))) == {}


@both
def test_shape_comments_are_true(name):
    derived = {**WAYS[name].derived, "d_k": "D/h"}
    assert assert_comments(KINDS[name[0]], run(name), derived) > 0


@both
def test_sizes_of_probes_differ_from_one_another(name):
    for own, shared in zip(WAYS[name].probes, PROBES, strict=True):
        values = [*own.values(), *shared.values()]
        assert len(values) == len(set(values))


def test_a_token_of_the_video_is_its_place_in_its_frames():
    frames = synthetic.clip().astype(float) / 127.5 - 1
    rows, columns = (frames.shape[1] // video.SIDE, frames.shape[2] // video.SIDE)
    for tau, make in ((1, video.frames), (4, lambda: video.tubelets(4))):
        made = make()
        cut = made.values[made.step("tokens.layout").value][0].numpy()
        assert len(cut) == len(frames) * rows * columns // tau
        for token in (0, 7, len(cut) - 1):
            time, place = divmod(token, rows * columns)
            top, left = (video.SIDE * at for at in divmod(place, columns))
            block_of = frames[time * tau : (time + 1) * tau, top : top + video.SIDE, left : left + video.SIDE]
            assert abs(cut[token] - block_of.ravel()).max() < 1e-6


def test_the_circle_moves_and_the_square_stays():
    frames = synthetic.clip().astype(int)
    red = [np.argwhere((frame[..., 0] - frame[..., 2]) > 100).mean(0) for frame in frames]
    blue = [np.argwhere((frame[..., 2] - frame[..., 0]) > 100).mean(0) for frame in frames]
    assert (np.diff([x for _, x in red]) > 4).all() and np.ptp([y for y, _ in red]) < 1
    assert np.ptp(blue, axis=0).max() < 1e-9


def test_the_products_are_those_of_an_fft():
    window = torch.hann_window(sound.WINDOW).numpy().astype(float)
    starts = range(0, len(MELODY) - sound.WINDOW + 1, sound.HOP)
    frames = np.stack([MELODY[start : start + sound.WINDOW] * window for start in starts])
    found = np.log(abs(np.fft.rfft(frames)) ** 2 + sound.FLOOR)
    assert abs(sound.spectrogram(MELODY) - found).max() < 1e-3


def test_the_chirp_rises_in_its_spectrogram():
    loudest = sound.spectrogram(CHIRP)[:, 1:].argmax(axis=1)
    assert (np.diff(loudest) >= 0).all() and loudest[-1] > 10 * loudest[0]


def test_codes_are_those_of_the_nearest_rows():
    logs, rows = sound.spectrogram(MELODY), sound.codebook(32)
    apart = np.linalg.norm(logs[:, None].astype(float) - rows, axis=2)
    assert (apart.argmin(axis=1) == sound.codes(MELODY, 32)).all()
    assert not any(np.array_equal(shown(), other) for shown in SYNTHETIC_SOUNDS.values() for other in lesson())


def test_a_codebook_is_where_k_means_stands_still():
    random = np.random.default_rng(0)
    heaps = random.normal(size=(4, 3)) * 20
    cloud = (heaps[:, None] + random.normal(size=(4, 50, 3))).reshape(-1, 3)
    rows = pictures.k_means(cloud, 4)
    nearest = np.linalg.norm(cloud[:, None] - rows, axis=2).argmin(axis=1)
    assert sorted(np.bincount(nearest)) == [50] * 4
    assert all(np.allclose(rows[row], cloud[nearest == row].mean(axis=0), atol=1e-5) for row in range(4))
    assert len(pictures.k_means(np.zeros((5, 2)), 3)) == 3
    with pytest.raises(ValueError, match="6 rows"):
        pictures.k_means(cloud[:5], 6)


@pytest.mark.parametrize("name", SERIES)
def test_bins_lose_half_a_bin_at_most(name):
    values = SERIES[name]()
    for V in series.BINS:
        found, (ids, decoded) = series.loss(values, V), series.to_bins(values, V)
        assert found.within <= found.half * (1 + 1e-6)
        assert (found.clipped > 0) == (name == "one outlier")
        nearest = abs(values[:, None] - series.middles(values, V)).argmin(axis=1)
        assert (ids == nearest).all() and abs(values - decoded).max() == pytest.approx(max(found.within, found.largest))
    made = series.trace_bins(values, 32)
    assert made.values[made.step("tokens.bin.to").value][0].tolist() == series.to_bins(values, 32)[0].tolist()
    assert series.loss(values, 4096).within < series.loss(values, 8).within / 100


def test_a_value_is_in_the_patch_that_is_marked():
    values = np.arange(90, dtype=np.float32)
    made = series.trace_patches(values, 8)
    cut = made.values[made.step("tokens.layout").value][0]
    for value in (2, 9, 10, 57, 89):
        number, count = series.cut(90, 8, value)
        assert count == len(cut) and value in cut[number]


@pytest.mark.parametrize("name", synthetic.CLOUDS)
def test_each_centre_is_the_farthest_from_those_before_it(name):
    cloud = synthetic.CLOUDS[name]()
    chosen = synthetic.farthest(cloud, 64)
    assert len(set(chosen.tolist())) == 64 and synthetic.shortfall(cloud, chosen) < 1e-12
    other = next(point for point in range(len(cloud)) if point not in chosen)
    assert synthetic.shortfall(cloud, np.append(chosen[:20], other)) > 0.05
    with pytest.raises(ValueError, match="0 centres"):
        synthetic.farthest(cloud, 0)


def test_clouds_lie_on_their_surfaces():
    torus = synthetic.CLOUDS["torus"]().astype(float)
    assert abs(np.hypot(np.hypot(torus[:, 0], torus[:, 1]) - 1, torus[:, 2]) - 0.4).max() < 1e-5
    outside = np.hypot(torus[:, 0], torus[:, 1]) > 1
    assert outside.mean() == pytest.approx(0.5 + 0.4 / np.pi, abs=0.04)  # its share of the area
    assert abs(np.linalg.norm(synthetic.CLOUDS["sphere"](), axis=1) - 1).max() < 1e-6
    assert (abs(synthetic.CLOUDS["cube"]()).max(axis=1) == 1).all()


def test_a_group_is_described_alike_in_any_order_and_place():
    cloud, random = synthetic.CLOUDS["torus"](), np.random.default_rng(0)
    centres = cloud[:5]
    plain = points.describe_groups(cloud, centres)
    assert np.array_equal(points.describe_groups(random.permutation(cloud), centres), plain)
    assert abs(points.describe_groups(cloud + 2, centres + 2) - plain).max() < 1e-5
    made = run(("points", "groups"))
    shown = made.values[made.step("tokens.groups.topk").value][0].numpy()
    chosen = synthetic.farthest(synthetic.CLOUDS["torus"](), 16)
    assert all((points.nearest(cloud, centre) == row).all() for centre, row in zip(chosen, shown, strict=True))


def test_a_drawn_wave_has_the_heights_of_the_sound():
    times, heights = envelope(CHIRP)
    assert len(times) == len(heights) <= 520 and times[-1] < 1.03
    assert heights.max() == pytest.approx(CHIRP.max(), abs=1e-3)
    assert heights.min() == pytest.approx(CHIRP.min(), abs=1e-3)


@pytest.mark.parametrize(("count", "ticks"), [(3, [1, 2, 3]), (96, [1, 20, 40, 60, 80]), (9, [1, 2, 4, 6, 8])])
def test_the_axis_of_time_steps_begins_with_the_first_one(count, ticks):
    values = np.sin(np.arange(count))
    assert list(series_charts.draw_patches(values, 3, 0).layout.xaxis.tickvals) == ticks
    assert list(series_charts.draw_bins(values, values, values, 0).layout.xaxis.tickvals) == ticks
