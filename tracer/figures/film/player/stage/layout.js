// Where everything stands on a stage of that size.

const ENTRY = { tokens: 0.75, sequence: 0.55, position: 0.55, visible: 0.6, return: 0.7, read: 0.55, modules: 0.7 };
const THUMB = 30;

const NARROW = 640; // pixels of a stage below which it is that of a phone
const COLUMN = 880; // pixels below which the answer stands under the photo
const THREAD = 12; // pixels beside the answer of a phone, for the thread that leads to it
const ROW = 37; // pixels of a row of buttons
const TOOLS = 372; // pixels of the tools that hide patches, below a photo
const BUTTONS = 430; // pixels that they take beside each other

const ratioOf = ({ crop: [left, top, right, bottom] }) => (right - left) / (bottom - top);

// The streams one above the other, the photo and the text on the left (above on a narrow stage), the answer on the right
// or, where there is no room, below the photo.
export function layOut(film, width, height) {
  const narrow = width < NARROW;
  const pad = narrow ? 12 : 20;
  if (film.pictures) {
    const flow = { x: pad, y: 4, w: width - 2 * pad, h: height - 8 };
    return { width, height, narrow, pad, flow, middle: flow, streams: [], photo: null, text: null, matrix: null };
  }
  const texts = film.streams.filter((stream) => stream.lanes.some((lane) => lane.word));
  const photo = film.photo;
  const column = !narrow && width < COLUMN && photo && !texts.length && film.answer;
  const out = { width, height, narrow, column, pad };
  let [left, right, top, bottom] = [pad, width - pad, narrow ? 4 : 10, height - 8];
  if (narrow) {
    const looks = photo ? ROW : 0;
    const band = Math.min(0.4 * height - looks, 0.5 * width);
    out.input = { x: pad, y: top, w: 0.52 * width - pad, h: band };
    out.answer = { x: 0.52 * width + 12, y: top, w: 0.48 * width - 12 - pad - THREAD, h: band };
    out.looks = { x: pad, y: top + band + 4, w: width - 2 * pad };
    top += band + looks + 12;
  } else if (column) {
    const input = 0.33 * width;
    out.input = { x: pad, y: top, w: input, h: Math.min(input, 0.56 * (height - 2 * ROW)) };
    left += input + 26;
  } else {
    const input = photo || texts.length ? Math.max(170, Math.min(0.27 * width, height - 20, 400)) : 0;
    const answer = film.answer ? Math.max(150, Math.min(0.19 * width, 240)) : 0;
    out.input = { x: pad, y: top, w: input, h: bottom - top };
    out.answer = { x: right - answer, y: top, w: answer, h: bottom - top };
    left += input ? input + 34 : 0;
    right -= answer ? answer + 26 : 0;
  }
  Object.assign(out, inputs(film, out.input, texts, narrow || column ? 0 : ROW * Math.ceil(BUTTONS / out.input.w)));
  out.looks ??= out.photo && { x: out.input.x, y: out.photo.y + out.photo.h + 6, w: out.input.w };
  if (column) {
    const y = out.looks.y + ROW * Math.ceil(BUTTONS / out.input.w) + 4;
    out.answer = { x: pad, y, w: out.input.w, h: bottom - y };
  }
  top += narrow ? 8 : 14; // the numbers of the blocks
  out.flow = { x: left, y: top, w: right - left, h: bottom - top };
  out.middle = narrow ? out.flow : { x: pad, y: 6, w: (column ? width : out.answer?.x ?? width) - pad - 20, h: height - 12 };
  out.streams = flows(film, out.flow, narrow);
  if (photo) out.hiding = hidingBoxes(film, out);
  return out;
}

// Where patches are hidden: the photo large, and its tools beside it, or below it on a narrow stage.
function hidingBoxes(film, { width, height, narrow, pad }) {
  const ratio = ratioOf(film.photo);
  const room = narrow ? { w: width - 2 * pad, h: Math.max(0.34 * height, Math.min(0.56 * height, height - TOOLS)) } : { w: 0.56 * width, h: height - 18 };
  const wide = Math.min(room.w, room.h * ratio);
  const box = { x: pad, y: 8, w: wide, h: wide / ratio };
  const tools = narrow
    ? { x: pad, y: box.y + box.h + 8, w: width - 2 * pad }
    : { x: pad + wide + 24, y: 8, w: width - 2 * pad - wide - 24 };
  return { photo: box, tools: { ...tools, h: height - tools.y - 4 } };
}

// The photo, the text and the matrix of attention within the rectangle of the input; `below` a photo there is so much room
// for what can be chosen.
function inputs(film, { x, y, w, h }, texts, below) {
  const out = { photo: null, text: null, matrix: null };
  const triangle = texts.length && film.looks.some((look) => look.queries.length > 1 && look.mask !== "none");
  let rest = { x, y, w, h };
  if (film.photo) {
    const ratio = ratioOf(film.photo);
    const room = texts.length ? 0.5 * h : h - below;
    const wide = Math.min(w, room * ratio);
    const high = wide / ratio;
    const above = texts.length ? 0 : Math.max(0, (h - high - below) / 2);
    out.photo = { x: x + (texts.length ? 0 : (w - wide) / 2), y: y + above, w: wide, h: high };
    rest = { x, y: y + high + 12 + below, w, h: h - high - 12 - below };
  }
  if (texts.length) {
    const side = triangle ? Math.min(rest.w, 0.56 * rest.h, 280) : 0;
    const fits = side > 70;
    out.text = { ...rest, h: rest.h - (fits ? side + 14 : 0) };
    if (fits) out.matrix = { x: rest.x, y: rest.y + rest.h - side, w: side, h: side };
  }
  return out;
}

// For each stream: its lanes from top to bottom, and where its snapshots end from left to right.
function flows(film, flow, narrow) {
  const gap = 22;
  const weights = film.streams.map((stream) => Math.max(0.35, Math.min(1, stream.lanes.length / 40)));
  const sum = weights.reduce((a, b) => a + b, 0);
  const room = flow.h - gap * Math.max(0, film.streams.length - 1);
  let y = flow.y;
  return film.streams.map((stream, index) => {
    const count = stream.lanes.length;
    const share = (room * weights[index]) / sum;
    const lane = Math.min(narrow ? 22 : 30, share / count);
    const high = lane * count;
    const marked = stream.lanes.filter((one) => (one.word ? lane >= 8 : one.patch === null || !film.photo));
    const longest = marked.reduce((most, one) => Math.max(most, [...one.mark].length), 3);
    const labels = Math.max(34, Math.min(narrow ? 64 : 92, 12 + 7.2 * longest));
    const thumb = stream.lanes.some((one) => one.patch !== null) && film.photo ? (narrow ? 18 : THUMB) : 12;
    const x = flow.x + labels;
    const beats = film.beats.flatMap((beat, at) => (beat.snapshot !== null && beat.stream === index ? [{ beat, at }] : []));
    const blocks = film.beats.flatMap((beat, at) => (beat.number && beat.stream === index ? [at] : []));
    const units = beats.map(({ beat }) => ENTRY[beat.kind] ?? 1);
    const total = units.reduce((a, b) => a + b, 0) || 1;
    const length = flow.x + flow.w - x - thumb - 14;
    let end = x + thumb;
    const segments = beats.map(({ beat, at }, place) => {
      const from = end;
      end += (length * units[place]) / total;
      return { beat, at, from, to: end, snapshot: film.snapshots[beat.snapshot] };
    });
    const place = { stream, index, x, thumb, top: y + (share - high) / 2, lane, high, segments, blocks, labels };
    y += share + gap;
    return place;
  });
}

export const laneY = (flow, lane) => flow.top + (lane + 0.5) * flow.lane;

// The lane at a point of the stage, or null.
export function laneAt(flow, x, y) {
  const lane = Math.floor((y - flow.top) / flow.lane);
  return x > flow.x - flow.labels && lane >= 0 && lane < flow.stream.lanes.length ? lane : null;
}

// How far a stream has come at a beat: the index of the last segment that has begun.
export const segmentAt = (flow, beat) => flow.segments.findLastIndex((segment) => segment.at <= beat);
