// The residual stream: lanes from left to right, the gates of the blocks, and threads of attention into one lane.

import { makeCanvas } from "../../../scripts/dom.js";
import { maximum } from "../../../scripts/heatmap.js";
import { measured, rgb, shade } from "./colours.js";
import { laneY, segmentAt } from "./layout.js";
import { drawPatch } from "./input.js";
import { drawText, fillBox, strokeCurve } from "./pen.js";

const OTHERS = 0.4; // how clear lanes stay when one of them alone is read
const LABEL = 12; // pixels of a number or a name beside a lane
const NAMES = 72; // pixels from the middle of a block in which the names of its parts stand
const LEAST = 0.03; // threads thinner than this share of the thickest are not drawn
const FAINT = 80; // faint threads that are drawn at most

// The lanes of a stream over its whole length, drawn once for each size, theme and measure; plain where they have none.
export function paintLanes(flow, theme, scale, name, ratio, width, height) {
  const canvas = makeCanvas(Math.max(1, width * ratio), Math.max(1, height * ratio));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const high = flow.lane > 3 ? flow.lane - Math.min(1.4, 0.16 * flow.lane) : flow.lane + 0.3;
  flow.segments.forEach((segment, place) => {
    const before = flow.segments[place - 1]?.snapshot;
    const [values, earlier] = [segment.snapshot, before].map((snapshot) => (scale && measured(snapshot, name) ? snapshot[name] : null));
    const bend = segment.beat.number ? segment.from + gateWidth(segment) / 2 : segment.from;
    flow.stream.lanes.forEach((_, lane) => {
      if (!segment.snapshot.present[lane]) return;
      const y = flow.top + lane * flow.lane;
      const colour = (array) => {
        const share = array ? scale.share(array[lane]) : NaN;
        return rgb(Number.isFinite(share) ? shade(theme, Math.min(1, share)) : theme.plain);
      };
      if (bend > segment.from) fillBox(context, colour(earlier), segment.from, y, bend - segment.from, high);
      fillBox(context, colour(values), bend, y, segment.to - bend + 0.5, high);
    });
  });
  return canvas;
}

export const gateWidth = (segment) => Math.min(46, 0.6 * (segment.to - segment.from));

// The left end of each lane: the patch's own pixels, the mark of a token that is none.
export function drawEnds(context, film, flow, photo, theme, alpha, present, arriving) {
  const high = Math.max(1, flow.lane - (flow.lane > 3 ? 1 : 0));
  let above = -Infinity; // the label above
  flow.stream.lanes.forEach((lane, at) => {
    if (!present[at]) return;
    const y = flow.top + at * flow.lane;
    if (lane.patch !== null && photo?.ready) {
      if (!arriving) drawPatch(context, film, photo, lane.patch, flow.x, y, flow.thumb, high);
      return;
    }
    context.globalAlpha = alpha;
    fillBox(context, theme.soft, flow.x, y, flow.thumb, high);
    if (lane.word ? flow.lane >= 8 : y - above >= LABEL) {
      above = y;
      const size = Math.min(14, Math.max(9, 0.82 * flow.lane));
      const font = lane.word ? `${size}px ui-monospace, monospace` : "600 12px system-ui";
      const look = { font, colour: theme.ink, align: "right", most: flow.labels - 6 };
      if (lane.word || at === 0 || !flow.stream.lanes[at - 1].word) drawText(context, lane.mark, flow.x - 5, y + high / 2, look);
    }
    context.globalAlpha = 1;
  });
}

// The lanes as far as the film has come, and where their heads are. `part` 0 to 1 is how much of the beat has passed.
export function drawLanes(context, flow, canvas, beat, part, theme, only) {
  const last = segmentAt(flow, beat);
  if (last < 0) return null;
  const segment = flow.segments[last];
  const head = segment.at === beat ? segment.from + (segment.to - segment.from) * part : segment.to;
  context.save();
  context.beginPath();
  context.rect(flow.x, flow.top - 2, head - flow.x, flow.high + 4);
  context.clip();
  context.globalAlpha = only === null ? 1 : OTHERS;
  context.drawImage(canvas, 0, 0, context.canvas.clientWidth, context.canvas.clientHeight);
  if (only !== null) {
    context.globalAlpha = 1;
    context.beginPath();
    context.rect(flow.x, flow.top + only * flow.lane, head - flow.x, flow.lane);
    context.clip();
    context.drawImage(canvas, 0, 0, context.canvas.clientWidth, context.canvas.clientHeight);
  }
  context.restore();
  return head;
}

// The gates of the blocks: the one that runs is lit.
export function drawGates(context, flow, beat, part, theme) {
  const numbered = flow.segments.filter((segment) => segment.beat.number);
  const narrowest = numbered.reduce((least, segment) => Math.min(least, segment.to - segment.from), Infinity);
  numbered.forEach((segment) => {
    const lit = segment.at === beat;
    const wide = gateWidth(segment);
    context.fillStyle = lit ? theme.gate : "transparent";
    context.strokeStyle = lit ? rgb(theme.thread) : theme.line;
    context.lineWidth = lit ? 2 : 1;
    context.beginPath();
    context.roundRect(segment.from, flow.top - 5, wide, flow.high + 10, 5);
    context.fill();
    if (lit) {
      context.save();
      context.shadowColor = rgb(theme.thread, 0.9);
      context.shadowBlur = 16 * Math.sin(Math.PI * Math.min(1, part)) + 5;
      context.stroke();
      context.restore();
    } else context.stroke();
    if (!(narrowest > 16 && flow.top > 16)) return;
    const [middle, above] = [segment.from + wide / 2, flow.top - 9];
    const named = numbered.find((one) => one.at === beat && one.snapshot.attention);
    if (lit && named) return drawNames(context, named, theme, middle, above);
    if (named && Math.abs(named.from + gateWidth(named) / 2 - middle) < NAMES) return; // no room beside the names
    const look = { font: `${lit ? 700 : 500} 12px system-ui`, colour: lit ? rgb(theme.thread) : theme.soft };
    drawText(context, segment.beat.label, middle, above, { ...look, baseline: "alphabetic" });
  });
}

// The number of a block and the names of its two parts, above it.
function drawNames(context, segment, theme, x, y) {
  const mlp = segment.snapshot.mlp ? [[" MLP", rgb(theme.mlp)]] : [];
  const parts = [[`${segment.beat.label}: `, theme.ink], ["attention", rgb(theme.thread)], ...mlp];
  context.font = "700 12px system-ui";
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  const widths = parts.map(([name]) => context.measureText(name).width);
  let left = x - widths.reduce((a, b) => a + b) / 2;
  parts.forEach(([name, colour], at) => {
    context.fillStyle = colour;
    context.fillText(name, left, y);
    left += widths[at];
  });
}

// The largest of what attention and the MLP add to a token, as a share of its length.
export const mostAdded = ({ attention, mlp }) => maximum([...attention, ...(mlp ?? [])].filter(Number.isFinite));

// How far attention, and then the MLP, moves each lane: two bars in the block that runs, as far as they have grown.
export function drawUpdates(context, flow, segment, [attended, added], theme) {
  const { attention, mlp } = segment.snapshot;
  const most = attention ? mostAdded(segment.snapshot) : 0;
  if (!(most > 0)) return;
  const half = gateWidth(segment) / (mlp ? 2 : 1);
  const high = Math.max(0.8, flow.lane - (flow.lane > 3 ? 1.4 : 0.2));
  context.fillStyle = theme.paper;
  context.globalAlpha = attended;
  context.fillRect(segment.from, flow.top - 2, mlp ? 2 * half : half, flow.high + 4);
  context.globalAlpha = 1;
  for (const [values, left, colour, grown] of [[attention, segment.from, theme.thread, attended], [mlp ?? [], segment.from + half, theme.mlp, added]]) {
    context.fillStyle = rgb(colour);
    values.forEach((value, lane) => {
      if (value > 0 && grown > 0) context.fillRect(left, flow.top + lane * flow.lane, grown * Math.max(2, ((half - 3) * value) / most), high);
    });
  }
}

// Threads from every lane into that of the focus, as thick as their weight; they run in as `part` goes from 0 to 1. Into
// each of the others leads a faint one, from the lane in `others`, which has its largest weight.
export function drawThreads(context, flow, segment, weights, focus, part, theme, source = flow, others = null) {
  const most = maximum(weights);
  if (!(most > 0)) return;
  const wide = gateWidth(segment);
  const room = Math.max(40, Math.min(120, 1.1 * (segment.to - segment.from)));
  const near = Math.max(flow.x + 4, segment.from - room + wide / 2);
  const start = source === flow ? near : (source.segments.at(-1)?.to ?? near); // across: from where the other tower ends
  const end = segment.from;
  const target = laneY(flow, focus);
  const thick = Math.max(3, Math.min(9, 1.1 * flow.lane));
  context.save();
  context.lineCap = "round";
  const middle = (start + end) / 2;
  const thread = (from, to) => strokeCurve(context, [start, from], [end, to], [middle, middle], 18, part);
  const apart = Math.ceil((others?.length ?? 0) / FAINT);
  context.strokeStyle = rgb(theme.thread, 0.5);
  context.lineWidth = 1;
  others?.forEach((lane, to) => {
    if (lane !== null && to !== focus && to % apart === 0) thread(laneY(source, lane), laneY(flow, to));
  });
  const order = [...weights.keys()].sort((a, b) => weights[a] - weights[b]);
  for (const lane of order) {
    const share = weights[lane] / most;
    if (share < LEAST) continue;
    context.strokeStyle = rgb(theme.thread, 0.12 + 0.83 * share);
    context.lineWidth = 0.6 + thick * share;
    thread(laneY(source, lane), target);
  }
  if (part >= 1) {
    context.fillStyle = theme.focus;
    context.shadowColor = rgb(theme.thread);
    context.shadowBlur = 12;
    context.beginPath();
    context.arc(end, target, Math.max(3.5, Math.min(6, flow.lane)), 0, 7);
    context.fill();
  }
  context.restore();
}
