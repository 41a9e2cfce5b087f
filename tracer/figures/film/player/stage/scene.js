// One frame of the film: everything follows from the beat, how much of it has passed, and what is looked at.

import { rgb, shade } from "./colours.js";
import { cropOf, drawChips, drawInput, drawMatrix, drawOutside, drawPatch, drawPhoto, patchBox } from "./input.js";
import { laneY, segmentAt } from "./layout.js";
import { drawText, strokeCurve } from "./pen.js";
import { drawEnds, drawGates, drawLanes, drawThreads, drawUpdates } from "./stream.js";

export const ease = (x) => (x <= 0 ? 0 : x >= 1 ? 1 : x * x * (3 - 2 * x));
export const mix = (a, b, u) => a + (b - a) * u;
export const between = (x, from, to) => ease((x - from) / (to - from));
const LINES = 5; // from patches to their lanes, at most
const ENDS = ["read", "answer", "project"];

// Draws on a canvas what `view` says: the film, where everything stands, the photo, the words, the painted lanes, the
// theme, and `eye`, which knows what is looked at. Returns what draws a part of a beat.
export function scene(context, film, view, eye, firstBar) {
  const last = film.beats.length - 1;

  // Whether a beat comes before the first tokens of all: inputs are then large in the middle of the stage.
  const opens = (at) => film.streams.length && !film.beats.slice(0, at + 1).some((beat) => beat.snapshot !== null);
  const alone = (at) => opens(at) && !view.words.some((chips) => chips.length);

  // A rectangle as large as the middle of the stage.
  function large({ w, h }) {
    const all = view.place.middle;
    const scale = Math.min(all.w / w, all.h / h);
    return { x: all.x + (all.w - w * scale) / 2, y: all.y + (all.h - h * scale) / 2, w: w * scale, h: h * scale };
  }

  // Where the part of the photo that the model gets lies within the whole of it, as large as that fits.
  function cropped() {
    const [[width, height], crop] = [film.photo.photo, cropOf(film.photo)];
    const all = large({ w: width, h: height });
    const scale = all.w / width;
    return { x: all.x + crop.x * scale, y: all.y + crop.y * scale, w: crop.w * scale, h: crop.h * scale };
  }

  const cutAt = (own) => {
    const enters = film.beats.findIndex((beat) => beat.stream === own && beat.snapshot !== null);
    return [film.beats.findIndex((beat, index) => beat.kind === "patches" || index === enters), enters];
  };

  // Where the photo stands at a beat.
  function photoBox(at, part, own) {
    if (!alone(at)) return view.place.photo;
    const [cut] = cutAt(own);
    const share = cut < 0 || at < cut ? 0 : at === cut ? ease(part) : 1;
    const [from, to] = [cropped(), large(view.place.photo)];
    return Object.fromEntries(["x", "y", "w", "h"].map((side) => [side, mix(from[side], to[side], share)]));
  }

  function drawPicture(at, part, look) {
    const { photo, theme, place } = view;
    const own = film.streams.findIndex((stream) => stream.lanes.some((lane) => lane.patch !== null));
    const [cut, enters] = cutAt(own);
    const first = film.beats.findIndex((beat) => beat.look !== null && beat.stream === own);
    const begun = first >= 0 && at >= first;
    const seen = begun && own >= 0 ? eye.seen(own, look.name) : null;
    const attends = seen && (look.name === "attention" || look.name === "rollout");
    const lit = attends ? (at === first ? ease(part / 0.5) : 1) : 0;
    const split = look.name === "patches" || (!begun && cut >= 0);
    const apart = look.name === "patches" ? 1 : look.name === "photo" || !split || at < cut ? 0 : at === cut ? ease(part) : 1;
    const { rows, columns } = film.photo;
    const weights = attends && new Float32Array(rows * columns);
    const hidden = [];
    if (own >= 0) {
      const passed = place.streams[own].segments
        .filter(({ beat }) => beat.kind !== "read")
        .filter((segment) => segment.at < at || (segment.at === at && part > 0.4));
      film.streams[own].lanes.forEach((lane, slot) => {
        if (lane.patch === null) return;
        if (weights) weights[lane.patch] = seen.row[slot];
        // what comes back in a lane that was empty has none of these pixels
        if (passed.some((segment) => !segment.snapshot.present[slot])) hidden.push(lane.patch);
      });
    }
    const focus = attends ? film.streams[own].lanes[eye.focusOf(own)]?.patch : null;
    const alpha = at === enters && opens(at - 1) ? between(part, 0.45, 0.9) : 1;
    const box = photoBox(at, part, own);
    const outside = alone(at) && at <= cut ? (at === cut ? 1 - ease(part) : 1) : 0;
    drawOutside(context, film, photo, box, outside);
    drawPhoto(context, film, photo, box, {
      alpha, apart, grey: look.colour ? 0 : lit, lit, weights, closed: seen?.closed, hidden, focus, theme,
    });
  }

  function drawWords(at, part) {
    const { place, words, theme } = view;
    film.streams.forEach((stream, index) => {
      if (!words[index].length) return;
      const row = eye.rowAt(index);
      const known = film.beats.findIndex((beat) => beat.kind === "text");
      const large = opens(at) && !film.photo;
      const fresh = !film.photo && film.beats[at].snapshot !== null && opens(at - 1);
      const alpha = fresh ? between(part, 0.5, 1) : at < known ? 0.25 : at === known ? mix(0.25, 1, ease(part)) : 1;
      const chips = large ? place.large[index] : words[index];
      drawChips(context, chips, { weights: row, focus: row ? eye.focusOf(index) : null, theme, alpha });
      const look = eye.lookAt(index);
      if (!place.matrix || !look || look.queries.length < 2) return;
      const runs = film.looks[film.beats[at].look] === look;
      const focusToken = look.slots.indexOf(eye.focusOf(index));
      drawMatrix(context, look, eye.head(), place.matrix, { focusToken, shown: runs ? between(part, 0, 0.7) : 1, theme });
    });
  }

  function drawStream(flow, at, part) {
    const { photo, theme, place } = view;
    const here = film.beats[at].stream === flow.index ? film.beats[at] : null;
    const reached = segmentAt(flow, at);
    if (reached < 0) return;
    context.globalAlpha = flow.segments[0].at === at ? between(part, 0.5, 1) : 1;
    drawGates(context, flow, here ? at : -1, part, theme);
    context.globalAlpha = 1;
    const segment = flow.segments[reached];
    const arriving = segment.at === at && part < 1 && reached === 0;
    const moving = here?.number ? between(part, 0.5, 1) : ease(part);
    const past = film.beats.some((beat, index) => ENDS.includes(beat.kind) && beat.stream === flow.index && index <= at);
    const only = past && flow.stream.read !== null ? flow.stream.read : null;
    const present = flow.segments
      .slice(0, reached + 1)
      .reduce((all, one) => all.map((was, lane) => was || one.snapshot.present[lane] > 0), flow.stream.lanes.map(() => false));
    const head = drawLanes(context, flow, view.lanesAt(flow.index, segment.snapshot), at, arriving ? between(part, 0.6, 1) : moving, theme, only);
    drawEnds(context, film, flow, photo, theme, arriving ? part : 1, present, arriving && place.photo);
    if (arriving) fly(flow, at, part);
    if (here?.number) {
      drawUpdates(context, flow, segment, [between(part, 0.5, 0.72), between(part, 0.72, 0.95)], theme);
      threads(flow, here, at, between(part, 0, 0.55), true);
    }
    else if (past) {
      const block = film.beats.findLastIndex((beat, index) => index < at && beat.number && beat.stream === flow.index);
      if (block >= 0) threads(flow, film.beats[block], block, 1);
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

  // The threads of a block, into the token that is looked at; where `all` are shown, faint ones into each other token.
  function threads(flow, beat, at, part, all = false) {
    const look = film.looks[beat.look];
    const source = look?.from ?? flow.index;
    const row = look && eye.rowOf(look, source);
    const own = flow.segments.find((one) => one.at === at);
    const others = all && look ? eye.strongest(look, source) : null;
    if (row && own) drawThreads(context, flow, own, row, eye.focusOf(flow.index), part, view.theme, view.place.streams[source], others);
  }

  // What each token's lane gives out, where the answer has a token for each.
  function outputs(flow, x, part) {
    const font = `700 ${Math.min(18, Math.max(9, 0.9 * flow.lane))}px ui-monospace, monospace`;
    film.answer.tokens.forEach((token, lane) => {
      context.globalAlpha = between(part * film.answer.tokens.length, lane, lane + 1);
      drawText(context, token, x + 6, laneY(flow, lane), { font, colour: rgb(view.theme.thread), align: "left" });
    });
    context.globalAlpha = 1;
  }

  // From the token that is read to the answer: its right side where that stands below the photo or above the lanes.
  function toAnswer(x, y, part) {
    const { answer: box, flow } = view.place;
    const beside = box.x > flow.x + flow.w;
    const [toX, toY] = [beside ? box.x - 6 : box.x + box.w + 6, box.y + firstBar(box) + (beside ? 0 : 8)];
    if (!beside && box.y > flow.y) return; // the lanes would be crossed
    context.strokeStyle = rgb(view.theme.thread);
    context.lineWidth = 3;
    context.lineCap = "round";
    const handles = beside ? [(x + toX) / 2, (x + toX) / 2] : [x, toX];
    strokeCurve(context, [x, y], [toX, toY], handles, 20, part);
  }

  // Patches fly from the photo into their lanes, words from the text.
  function fly(flow, at, part) {
    const { photo, place, theme, words } = view;
    const count = flow.stream.lanes.length;
    const from = place.photo && (alone(at - 1) ? large(place.photo) : place.photo);
    const chips = opens(at - 1) && !film.photo ? place.large[flow.index] : words[flow.index];
    flow.stream.lanes.forEach((lane, slot) => {
      if (!flow.segments[0].snapshot.present[slot]) return;
      const u = ease(part * 1.9 - (0.9 * slot) / count);
      const [y, high] = [flow.top + slot * flow.lane, Math.max(1, flow.lane - (flow.lane > 3 ? 1 : 0))];
      if (lane.patch !== null && photo?.ready && from) {
        const box = patchBox(film.photo, from, lane.patch);
        const lift = -26 * Math.sin(Math.PI * u);
        drawPatch(context, film, photo, lane.patch, mix(box.x, flow.x, u), mix(box.y, y, u) + lift, mix(box.w, flow.thumb, u), mix(box.h, high, u));
      } else if (u < 1) {
        const chip = chips.find((one) => one.lane === slot);
        if (!chip) return;
        context.globalAlpha = 1 - u * u;
        const look = { font: `600 ${chip.size}px ui-monospace, monospace`, colour: theme.ink };
        drawText(context, lane.mark, mix(chip.x + chip.w / 2, flow.x, u), mix(chip.y + chip.h / 2, y + high / 2, u), look);
        context.globalAlpha = 1;
      }
    });
  }

  // From the patches that get most attention to their lanes: from none that gets as much as one without a line, or nothing.
  function connect(at, part) {
    const beat = film.beats[at];
    if (beat.look === null || !view.place.photo || view.place.narrow) return;
    const source = film.looks[beat.look].from;
    const flow = view.place.streams[source];
    const row = flow && eye.rowAt(source);
    if (!row) return;
    const lanesOf = flow.stream.lanes;
    const order = [...row.keys()].filter((lane) => lanesOf[lane].patch !== null).sort((a, b) => row[b] - row[a]);
    const next = Math.max(0, row[order[LINES]] ?? 0);
    const top = order.slice(0, LINES).filter((lane) => row[lane] > next);
    const most = row[top[0]] || 1;
    context.save();
    context.setLineDash([3, 4]);
    for (const lane of top) {
      const box = patchBox(film.photo, view.place.photo, lanesOf[lane].patch);
      const [x, y] = [box.x + box.w, box.y + box.h / 2];
      const middle = (view.place.photo.x + view.place.photo.w + flow.x) / 2;
      context.strokeStyle = rgb(view.theme.thread, between(part, 0, 0.3) * (0.25 + (0.6 * row[lane]) / most));
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
    const { theme } = view;
    const { x, y, w, h } = view.place.flow;
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
      const look = { font: `${lit ? 700 : 500} 14px system-ui`, colour: theme.ink, most: wide - 18 };
      drawText(context, beat.label, left + wide / 2, top + high / 2, look);
    });
  }

  // Draws a part of a beat, 0 to 1; `look` is what the photo shows. Returns how full the answer is.
  function draw(at, part, look) {
    const { place } = view;
    context.clearRect(0, 0, place.width, place.height);
    if (place.photo) drawPicture(at, part, look);
    if (place.text) drawWords(at, part);
    if (film.input && opens(at - 1)) drawInput(context, film.input, place.middle, opens(at) ? 1 : 1 - between(part, 0, 0.5), view.theme);
    for (const flow of place.streams) drawStream(flow, at, part);
    if (!film.streams.length) drawBoxes(at, part);
    connect(at, part);
    return film.beats[at].kind === "answer" || at === last ? between(part, 0.35, 1) : 0;
  }
  return { draw, alone };
}
