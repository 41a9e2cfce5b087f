// The film: its state, its clock, its keys, and one frame of it.

import { answerView } from "./answer.js";
import { captionView } from "./captions.js";
import { measure, rgb, shade, themed } from "./colours.js";
import { chips, drawChips, drawMatrix, drawPatch, drawPhoto, largeChips, loadPhoto, patchBox } from "./input.js";
import { laneY, layOut, segmentAt } from "./layout.js";
import { percent, rowOf } from "./message.js";
import { listen, pointed } from "./pointing.js";
import { scrubber } from "./scrubber.js";
import { drawEnds, drawGates, drawLanes, drawThreads, gateWidth, paintLanes } from "./stream.js";

const LONGEST = 15_500; // milliseconds that Play takes at most, unless beats would be too short to see
const DWELL = [420, 1_250]; // milliseconds of a beat when playing, at least and at most
const MOVE = 820; // milliseconds of a transition
const STEPS = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };

const ease = (x) => (x <= 0 ? 0 : x >= 1 ? 1 : x * x * (3 - 2 * x));
const mix = (a, b, u) => a + (b - a) * u;
const between = (x, from, to) => ease((x - from) / (to - from));

// Shows a film in an element with the player's markup. `keys` is what key presses are heard on: the element itself where
// a page around it has its own. Returns what ends it.
export function mount(root, film, keys = window) {
  const find = (name) => root.querySelector(name);
  const canvas = find("canvas");
  const context = canvas.getContext("2d");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { at: 0, part: 1, head: -1, measure: {}, pinned: film.streams.map(() => null), pointed: null, playing: false };
  const last = film.beats.length - 1;
  const dwell = Math.max(DWELL[0], Math.min(DWELL[1], LONGEST / film.beats.length));
  const speed = Math.min(MOVE, 0.9 * dwell);
  let [place, words, lanes, theme, drawn, frame, before, clock] = [null, [], [], null, "", 0, 0, 0];
  const photo = loadPhoto(film, () => draw(true));
  const caption = captionView(root);
  const answer = answerView(find(".answer"), film.answer);
  const track = scrubber(find(".scrubber"), film, (at) => go(at, true));
  film.looks.forEach((look, at) => (look.stream = film.beats.find((beat) => beat.look === at).stream));
  const scales = film.streams.map((_, stream) => ({ like: measure(film, stream, "like"), change: measure(film, stream, "change") }));
  const measures = [...new Set(scales.flatMap((scale) => ["like", "change"].filter((name) => scale[name])))];
  state.measure = measures[0] ?? "change";

  // The lane that is looked at in a stream: pointed at, kept by a click, or the one that the film is about.
  const focusOf = (stream) => {
    if (state.pointed?.stream === stream) return state.pointed.lane;
    const beat = film.beats[state.at];
    return state.pinned[stream] ?? (beat.stream === stream ? beat.focus : film.streams[stream].focus);
  };

  // The attention that is on the photo and the text: of this beat, or of the last block before it.
  const lookAt = (stream) => {
    for (let at = state.at; at >= 0; at--) {
      const beat = film.beats[at];
      if (beat.look !== null && beat.stream === stream && film.looks[beat.look].from === stream) return film.looks[beat.look];
      if (beat.kind === "return" && beat.stream === stream) return null;
    }
    return null;
  };
  const rowAt = (stream) => {
    const now = film.looks[film.beats[state.at].look];
    const look = now?.from === stream ? now : lookAt(stream);
    return look && rowOf(look, film.streams[look.from], focusOf(look.stream), state.head);
  };

  function go(at, stop = false) {
    const next = Math.max(0, Math.min(last, at));
    if (stop) play(false);
    if (next === state.at) return;
    state.at = next;
    state.part = calm.matches ? 1 : 0;
    clock = 0;
    describe();
    wake();
  }

  function describe() {
    caption.show(film.beats[state.at]);
    track.mark(state.at);
    tokens();
    heads();
    legend();
    point();
    root.dataset.beat = state.at;
  }

  function play(on) {
    state.playing = on;
    const button = find(".play");
    button.textContent = on ? "❚❚ Pause" : "▶ Play";
    button.setAttribute("aria-label", on ? "Pause" : "Play the run");
    find(".caption").setAttribute("aria-live", on ? "off" : "polite");
    if (!on) return;
    if (state.at === last) {
      state.at = 0;
      state.part = 0;
      describe();
    }
    clock = 0;
    wake();
  }

  // The choice of a token: the same as pointing, for the keyboard.
  function tokens() {
    const select = find(".token");
    const stream = film.beats[state.at].stream ?? (film.streams.length ? 0 : null);
    select.closest("label").hidden = stream === null || !film.looks.some((look) => look.stream === stream && look.queries.length > 1);
    if (stream === null) return;
    if (select.dataset.stream !== String(stream)) {
      select.dataset.stream = stream;
      select.replaceChildren(
        ...film.streams[stream].lanes.slice(0, 400).map((lane, at) => new Option(`${at + 1}: ${lane.mark}`, at)),
      );
    }
    select.value = focusOf(stream);
  }

  function heads() {
    const select = find(".head");
    const look = film.looks.find((one) => one.stream === (film.beats[state.at].stream ?? 0));
    select.closest("label").hidden = !look || look.views < 2;
    if (!look) return;
    if (Number(select.dataset.views) !== look.views) {
      select.dataset.views = look.views;
      if (state.head >= look.views) state.head = -1;
      const one = Array.from({ length: look.views }, (_, head) => new Option(`head ${head + 1}`, head));
      select.replaceChildren(new Option("all", -1), ...one);
    }
    select.value = state.head;
  }

  function legend() {
    const beat = film.beats[state.at];
    const stream = beat.stream ?? 0;
    const scale = scales[stream]?.[state.measure] ?? scales[stream]?.change;
    const name = scales[stream]?.[state.measure] ? state.measure : "change";
    const node = find(".legend");
    node.hidden = !scale || !film.beats.slice(0, state.at + 1).some((one) => one.snapshot !== null);
    if (node.hidden) return;
    const read = film.streams[stream].lanes[film.streams[stream].read]?.name;
    find(".legend .what").textContent = name === "like" ? `Lanes: likeness to ${read} (cosine)` : "Lanes: how far a beat moved the token";
    find(".legend .least").textContent = name === "like" ? scale.least.toFixed(2) : percent(scale.least);
    find(".legend .most").textContent = name === "like" ? scale.most.toFixed(2) : scale.most < 10 ? percent(scale.most) : `${scale.most.toPrecision(3)} ×`;
    find(".legend .ramp").style.setProperty("--ramp", [0, 0.25, 0.5, 0.75, 1].map((share) => rgb(shade(theme, share))).join(","));
  }

  // One line under the stage: where the token that is looked at looks.
  function point() {
    const beat = film.beats[state.at];
    const node = find(".point");
    const stream = beat.stream;
    const source = film.looks[beat.look]?.from ?? stream;
    const row = stream === null ? null : rowAt(source);
    if (!row || stream === null) {
      const look = stream === null ? null : lookAt(stream);
      node.textContent = look && look.queries.length === 1 ? `This film holds the attention of ${film.streams[stream].lanes[look.slots[look.queries[0]]].name} alone.` : "";
      return;
    }
    const focus = focusOf(stream);
    const most = row.indexOf(row.reduce((a, b) => Math.max(a, b), 0));
    const lane = film.streams[source].lanes;
    const short = (one) => (one.patch === null ? one.name : one.mark);
    const who = short(film.streams[stream].lanes[focus]);
    const head = state.head >= 0 ? `, head ${state.head + 1}` : "";
    const target = most === focus && source === stream ? "itself" : short(lane[most]);
    node.textContent = `Amber: attention of ${who}${head}; ${percent(row[most])} to ${target}.`;
  }

  function resize() {
    const box = canvas.parentElement.getBoundingClientRect();
    const ratio = Math.min(2, devicePixelRatio || 1);
    theme = themed(root.dataset.theme || (dark.matches ? "dark" : "light"));
    const key = [box.width, box.height, ratio, theme.paper, state.measure, photo?.ready].join();
    track.build();
    if (key === drawn || !box.width || !box.height) return;
    drawn = key;
    Object.assign(canvas, { width: Math.round(box.width * ratio), height: Math.round(box.height * ratio) });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    place = layOut(film, box.width, box.height);
    words = film.streams.map((stream) => (place.text ? chips(context, stream, place.text) : []));
    place.large = film.streams.map((stream, index) => (words[index].length ? largeChips(context, stream, place.middle) : []));
    lanes = place.streams.map((flow, stream) => {
      const name = scales[stream][state.measure] ? state.measure : "change";
      return paintLanes(film, flow, photo, theme, scales[stream][name], name, ratio, box.width, box.height);
    });
    caption.fit();
  }

  // One frame: everything follows from the beat, how much of it has passed, and what is looked at.
  function draw(anew = false) {
    if (anew) drawn = "";
    resize();
    if (!place) return;
    const [at, part] = [state.at, state.part];
    const beat = film.beats[at];
    context.clearRect(0, 0, place.width, place.height);
    if (place.photo) drawPicture(at, part);
    if (place.text) drawWords(at, part);
    for (const flow of place.streams) drawStream(flow, at, part);
    if (!film.streams.length) drawBoxes(at, part);
    connect(at, part);
    const shown = beat.kind === "answer" || at === last ? between(part, 0.35, 1) : 0;
    answer(shown, place.answer, shown ? 1 : 0.45);
  }

  function drawPicture(at, part) {
    const own = film.streams.findIndex((stream) => stream.lanes.some((lane) => lane.patch !== null));
    const enters = film.beats.findIndex((beat) => beat.stream === own && beat.snapshot !== null);
    const cut = film.beats.findIndex((beat, index) => beat.kind === "patches" || index === enters);
    const apart = cut < 0 || at < cut ? 0 : at === cut ? ease(part) : 1;
    const row = own < 0 ? null : rowAt(own);
    const first = film.beats.findIndex((beat) => beat.look !== null && beat.stream === own);
    const grey = row && first >= 0 && at >= first ? (at === first ? ease(part / 0.5) : 1) : 0;
    const { rows, columns } = film.photo;
    const weights = row && new Float32Array(rows * columns);
    const hidden = [];
    if (own >= 0) {
      const flow = place.streams[own];
      const begun = flow.segments.filter(({ beat }) => beat.kind !== "read").filter((segment) => segment.at < at || (segment.at === at && part > 0.4));
      film.streams[own].lanes.forEach((lane, slot) => {
        if (lane.patch === null) return;
        if (weights) weights[lane.patch] = row[slot];
        // what comes back in a lane that was empty has none of these pixels
        if (begun.some((segment) => !segment.snapshot.present[slot])) hidden.push(lane.patch);
      });
    }
    const focus = row && own >= 0 && grey ? film.streams[own].lanes[focusOf(own)]?.patch : null;
    const alone = opens(at) && !words.some((chips) => chips.length);
    const alpha = at === enters && opens(at - 1) ? between(part, 0.45, 0.9) : 1;
    drawPhoto(context, film, photo, alone ? large(place.photo) : place.photo, { alpha, apart, grey, weights, hidden, focus, theme });
  }

  // Whether a beat comes before the first tokens of all: inputs are then large in the middle of the stage.
  const opens = (at) => film.streams.length && !film.beats.slice(0, at + 1).some((beat) => beat.snapshot !== null);
  function large(box) {
    const all = place.middle;
    const scale = Math.min(all.w / box.w, all.h / box.h);
    const [w, h] = [box.w * scale, box.h * scale];
    return { x: all.x + (all.w - w) / 2, y: all.y + (all.h - h) / 2, w, h };
  }

  function drawWords(at, part) {
    film.streams.forEach((stream, index) => {
      if (!words[index].length) return;
      const row = rowAt(index);
      const known = film.beats.findIndex((beat) => beat.kind === "text");
      const alone = opens(at) && !film.photo;
      const fresh = !film.photo && film.beats[at].snapshot !== null && opens(at - 1);
      const alpha = fresh ? between(part, 0.5, 1) : at < known ? 0.25 : at === known ? mix(0.25, 1, ease(part)) : 1;
      drawChips(context, alone ? place.large[index] : words[index], { weights: row, focus: row ? focusOf(index) : null, theme, alpha });
      const look = lookAt(index);
      if (!place.matrix || !look || look.queries.length < 2) return;
      const runs = film.looks[film.beats[at].look] === look;
      const focusToken = look.slots.indexOf(focusOf(index));
      drawMatrix(context, look, state.head, place.matrix, { focusToken, shown: runs ? between(part, 0, 0.7) : 1, theme });
    });
  }

  function drawStream(flow, at, part) {
    const here = film.beats[at].stream === flow.index ? film.beats[at] : null;
    const reached = segmentAt(flow, at);
    if (reached < 0) return;
    context.globalAlpha = flow.segments[0].at === at ? between(part, 0.5, 1) : 1;
    drawGates(context, flow, here ? at : -1, part, theme);
    context.globalAlpha = 1;
    const segment = flow.segments[reached];
    const arriving = segment.at === at && part < 1 && reached === 0;
    const moving = here?.number ? between(part, 0.45, 1) : ease(part);
    const past = film.beats.some((beat, place) => ["read", "answer", "project"].includes(beat.kind) && beat.stream === flow.index && place <= at);
    const only = past && flow.stream.read !== null ? flow.stream.read : null;
    const present = flow.segments.slice(0, reached + 1).reduce((all, one) => all.map((was, lane) => was || one.snapshot.present[lane] > 0), flow.stream.lanes.map(() => false));
    const head = drawLanes(context, flow, lanes[flow.index], at, arriving ? between(part, 0.6, 1) : moving, theme, only);
    drawEnds(context, film, flow, photo, theme, arriving ? part : 1, present, arriving && place.photo);
    if (arriving) fly(flow, part);
    if (here?.number) {
      const source = film.looks[here.look]?.from ?? flow.index;
      const row = rowAt(source);
      const own = flow.segments.find((one) => one.at === at);
      if (row && own) drawThreads(context, flow, own, row, focusOf(flow.index), between(part, 0, 0.62), theme, place.streams[source]);
    }
    if (at === last && film.answer?.tokens?.length === flow.stream.lanes.length) outputs(flow, head, between(part, 0.2, 1));
    if (only !== null && head !== null) {
      context.fillStyle = rgb(theme.thread);
      context.beginPath();
      context.arc(head + 5, laneY(flow, only), 5, 0, 7);
      context.fill();
      if (at === last && film.answer) toAnswer(head + 5, laneY(flow, only), between(part, 0, 0.5));
    }
  }

  // What each token's lane gives out, where the answer has a token for each.
  function outputs(flow, x, part) {
    context.fillStyle = rgb(theme.thread);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.font = `700 ${Math.min(18, Math.max(9, 0.9 * flow.lane))}px ui-monospace, monospace`;
    film.answer.tokens.forEach((token, lane) => {
      context.globalAlpha = between(part * film.answer.tokens.length, lane, lane + 1);
      context.fillText(token, x + 6, laneY(flow, lane));
    });
    context.globalAlpha = 1;
  }

  // The middle of the likeliest answer, from the top of the box.
  function firstBar(box) {
    const bar = find(".bar.first");
    return bar ? bar.offsetTop + bar.offsetHeight / 2 : box.h / 2;
  }

  // From the token that is read to the answer.
  function toAnswer(x, y, part) {
    const { answer: box, narrow } = place;
    const [toX, toY] = narrow ? [box.x + box.w - 3, box.y + firstBar(box) + 8] : [box.x - 6, box.y + firstBar(box)];
    context.strokeStyle = rgb(theme.thread);
    context.lineWidth = 3;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(x, y);
    for (let step = 1; step <= 20 * part; step++) {
      const [u, v] = [step / 20, 1 - step / 20];
      const middle = narrow ? x : (x + toX) / 2;
      context.lineTo(v ** 3 * x + 3 * v * v * u * middle + 3 * v * u * u * (narrow ? toX : middle) + u ** 3 * toX, v ** 3 * y + 3 * v * v * u * y + 3 * v * u * u * toY + u ** 3 * toY);
    }
    context.stroke();
  }

  // Patches fly from the photo into their lanes, words from the text.
  function fly(flow, part) {
    const count = flow.stream.lanes.length;
    flow.stream.lanes.forEach((lane, slot) => {
      if (!flow.segments[0].snapshot.present[slot]) return;
      const u = ease(part * 1.9 - (0.9 * slot) / count);
      const [y, high] = [flow.top + slot * flow.lane, Math.max(1, flow.lane - (flow.lane > 3 ? 1 : 0))];
      if (lane.patch !== null && photo?.ready && place.photo) {
        const alone = opens(state.at - 1) && !words.some((chips) => chips.length);
        const box = patchBox(film, alone ? large(place.photo) : place.photo, lane.patch);
        const lift = -26 * Math.sin(Math.PI * u);
        drawPatch(context, film, photo, lane.patch, mix(box.x, flow.x, u), mix(box.y, y, u) + lift, mix(box.w, flow.thumb, u), mix(box.h, high, u));
      } else if (u < 1) {
        const from = opens(state.at - 1) && !film.photo ? place.large[flow.index] : words[flow.index];
        const chip = from.find((one) => one.lane === slot);
        if (!chip) return;
        context.globalAlpha = 1 - u * u;
        context.fillStyle = theme.ink;
        context.font = `600 ${chip.size}px ui-monospace, monospace`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(lane.mark, mix(chip.x + chip.w / 2, flow.x, u), mix(chip.y + chip.h / 2, y + high / 2, u));
        context.globalAlpha = 1;
      }
    });
  }

  // From the patches that get most attention to their lanes.
  function connect(at, part) {
    const beat = film.beats[at];
    if (beat.look === null || !place.photo || place.narrow) return;
    const source = film.looks[beat.look].from;
    const flow = place.streams[source];
    const row = flow && rowAt(source);
    if (!row) return;
    const lanesOf = flow.stream.lanes;
    const top = [...row.keys()].filter((lane) => lanesOf[lane].patch !== null).sort((a, b) => row[b] - row[a]).slice(0, 5);
    const most = row[top[0]] || 1;
    context.save();
    context.setLineDash([3, 4]);
    for (const lane of top) {
      const box = patchBox(film, place.photo, lanesOf[lane].patch);
      const [x, y] = [box.x + box.w, box.y + box.h / 2];
      const middle = (place.photo.x + place.photo.w + flow.x) / 2;
      context.strokeStyle = rgb(theme.thread, between(part, 0, 0.3) * (0.25 + (0.6 * row[lane]) / most));
      context.lineWidth = 1.4;
      context.beginPath();
      context.moveTo(x, y);
      context.bezierCurveTo(middle, y, middle, laneY(flow, lane), flow.x, laneY(flow, lane));
      context.stroke();
    }
    context.restore();
  }

  // A run without lanes: its beats as boxes, one after the other.
  function drawBoxes(at, part) {
    const { x, y, w, h } = place.flow;
    const columns = Math.max(1, Math.min(film.beats.length, Math.floor(w / 150)));
    const rows = Math.ceil(film.beats.length / columns);
    const [wide, high] = [w / columns, Math.min(90, h / rows)];
    film.beats.forEach((beat, index) => {
      const [left, top] = [x + (index % columns) * wide, y + Math.floor(index / columns) * high + (h - rows * high) / 2];
      const lit = index === at;
      context.fillStyle = index < at ? rgb(shade(theme, 0.35)) : lit ? theme.gate : theme.empty;
      context.strokeStyle = lit ? rgb(theme.thread) : theme.line;
      context.lineWidth = lit ? 2 + 2 * Math.sin(Math.PI * part) : 1;
      context.beginPath();
      context.roundRect(left + 5, top + 5, wide - 10, high - 10, 7);
      context.fill();
      context.stroke();
      context.fillStyle = theme.ink;
      context.font = `${lit ? 700 : 500} 14px system-ui`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(beat.label, left + wide / 2, top + high / 2, wide - 18);
    });
  }

  // The clock runs while something moves, and stands still otherwise.
  function wake() {
    if (frame) return;
    before = performance.now();
    frame = requestAnimationFrame(tick);
  }
  function tick(now) {
    const passed = Math.min(60, now - before);
    before = now;
    state.part = calm.matches ? 1 : Math.min(1, state.part + passed / speed);
    if (state.playing) {
      clock += passed;
      if (clock >= dwell) {
        if (state.at === last) play(false);
        else go(state.at + 1);
      }
    }
    draw();
    frame = state.playing || state.part < 1 ? requestAnimationFrame(tick) : 0;
  }

  function look(target) {
    if (state.pointed?.stream === target?.stream && state.pointed?.lane === target?.lane) return;
    state.pointed = target;
    tokens();
    point();
    wake();
  }
  function keep(target) {
    if (target) state.pinned[target.stream] = state.pinned[target.stream] === target.lane ? null : target.lane;
    else state.pinned.fill(null);
    tokens();
    point();
    wake();
  }
  const onKey = (event) => {
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.closest?.("select, input, textarea")) return;
    const step = STEPS[event.key];
    if (step) go(state.at + step, true);
    else if (event.key === "Home") go(0, true);
    else if (event.key === "End") go(last, true);
    else if (event.key === " " && !event.target.closest?.("button")) play(!state.playing);
    else return;
    event.preventDefault();
  };
  const anew = () => draw(true);
  const relook = () => {
    legend();
    draw(true);
  };

  find(".model").textContent = film.model;
  find(".proofs").textContent = film.proofs;
  find(".play").onclick = () => {
    play(!state.playing);
  };
  find(".theme").onclick = () => {
    root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    draw(true);
    legend();
  };
  find(".token").onchange = (event) => {
    state.pinned[Number(event.target.dataset.stream)] = Number(event.target.value);
    point();
    wake();
  };
  find(".head").onchange = (event) => {
    state.head = Number(event.target.value);
    point();
    wake();
  };
  const choice = find(".measure");
  choice.closest("label").hidden = measures.length < 2;
  const options = { like: "likeness", change: "change" };
  choice.replaceChildren(...measures.map((name) => new Option(options[name], name)));
  choice.onchange = () => {
    state.measure = choice.value;
    relook();
  };
  listen(canvas, { at: (x, y) => pointed(film, place, words, lookAt(film.beats[state.at].stream ?? 0), x, y), look, keep, step: (by) => go(state.at + by, true) });
  keys.addEventListener("keydown", onKey);
  const sized = new ResizeObserver(() => draw());
  sized.observe(canvas.parentElement);
  dark.addEventListener("change", relook);
  resize();
  describe();
  draw();
  root.film = { go, play, state, film, place: () => place };
  return () => {
    cancelAnimationFrame(frame);
    sized.disconnect();
    dark.removeEventListener("change", relook);
    keys.removeEventListener("keydown", onKey);
  };
}
