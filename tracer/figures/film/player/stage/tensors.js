// A step inside a block: its operands and its result, each side in the same proportion, and one row lit in them.

import { makeCanvas } from "../../../scripts/dom.js";
import { paintMatrix } from "../../../scripts/heatmap.js";
import { rgb } from "./colours.js";
import { drawPatch } from "./input.js";
import { drawText, fillBox, strokeBox } from "./pen.js";
import { ease, mix } from "./scene.js";

const NO_VALUE = 255; // the byte of a cell that has no finite value
const [ACROSS, DOWN] = [34, 52]; // pixels between pictures
const MARGIN = { left: 46, top: 26, bottom: 22 }; // pixels for names around them
const LARGEST = 18; // pixels of a cell at most
const THIN = 3; // pixels of a picture's shorter side at least
const PHASES = [0.3, 0.45]; // of a beat: when operands stand in their places, and when the result begins to fill

// The matrix of a picture that belongs to a chosen head; keys and values may have fewer heads than queries.
export const headOf = (picture, head, heads) => Math.min(picture.cells.shape[0] - 1, Math.floor((Math.max(0, head) * picture.cells.shape[0]) / heads));

// Where the pictures of a beat stand in an area: two factors at the sides of their product, or one beside the other.
function placePictures(film, beat, area) {
  const pictures = beat.drawn.map((index) => film.pictures[index] ?? null);
  const size = (picture) => ({ rows: picture.full[0], columns: picture.full[1] });
  const room = { w: area.w - MARGIN.left - 8, h: area.h - MARGIN.top - MARGIN.bottom };
  if (beat.product) {
    const [left, right] = pictures.map(size);
    const unit = Math.min((room.w - ACROSS - MARGIN.left) / (left.columns + right.columns), (room.h - DOWN) / (right.rows + left.rows), LARGEST);
    const [deep, tall, wide] = [left.columns, left.rows, right.columns].map((count) => Math.max(THIN, count * unit));
    const across = ACROSS + MARGIN.left;
    const x = area.x + MARGIN.left + (room.w - deep - across - wide) / 2;
    const y = area.y + MARGIN.top + (room.h - deep - DOWN - tall) / 2;
    return [
      { x, y: y + deep + DOWN, w: deep, h: tall },
      { x: x + deep + across, y, w: wide, h: deep },
      { x: x + deep + across, y: y + deep + DOWN, w: wide, h: tall },
    ];
  }
  const known = pictures.filter(Boolean).map(size);
  const columns = known.reduce((sum, one) => sum + one.columns, 0) || 1;
  const between = ACROSS + MARGIN.left;
  const unit = Math.min((room.w - between * (known.length - 1)) / columns, room.h / Math.max(1, ...known.map((one) => one.rows)), LARGEST);
  const length = columns * unit + between * (known.length - 1);
  let x = area.x + MARGIN.left + (room.w - length) / 2;
  return pictures.map((picture) => {
    if (!picture) return null;
    const { rows, columns: count } = size(picture);
    const [w, h] = [Math.max(THIN, count * unit), Math.max(THIN, rows * unit)];
    const box = { x, y: area.y + MARGIN.top + (room.h - h) / 2, w, h };
    x += w + between;
    return box;
  });
}

// A name such as `W_Q` or `K^⊤`, its lower and upper parts small.
function drawName(context, text, x, y, size) {
  const parts = text.split(/(?=[_^])/);
  const fonts = parts.map((_, at) => `italic ${at ? 0.72 * size : size}px "KaTeX_Math", "Cambria Math", Georgia, serif`);
  const clean = parts.map((part) => part.replace(/^[_^]/, ""));
  let length = 0;
  clean.forEach((part, at) => {
    context.font = fonts[at];
    length += context.measureText(part).width;
  });
  let left = x - length / 2;
  context.textAlign = "left";
  clean.forEach((part, at) => {
    context.font = fonts[at];
    context.fillText(part, left, y + (parts[at][0] === "_" ? 0.28 * size : parts[at][0] === "^" ? -0.32 * size : 0));
    left += context.measureText(part).width;
  });
}

export function tensors(context, film, view, eye, thumbs) {
  const painted = new Map();

  // One matrix in its colours, a pixel for each cell.
  function canvasOf(index, head) {
    const key = `${index} ${head}`;
    if (painted.has(key)) return painted.get(key);
    const picture = film.pictures[index];
    const [, rows, columns] = picture.cells.shape;
    const canvas = makeCanvas(columns, rows);
    const bytes = picture.cells.subarray(head * rows * columns, (head + 1) * rows * columns);
    const shares = Float32Array.from(bytes, (byte) => (byte === NO_VALUE ? NaN : byte));
    paintMatrix(canvas, [rows, columns], shares, 0, NO_VALUE - 1, film.colours[picture.scales[head][2]]);
    painted.set(key, canvas);
    return canvas;
  }

  const head = (picture) => headOf(picture, eye.head(), film.heads);
  const ofTokens = (picture) => film.streams.length && picture.full[0] === film.slots.length;

  // The column in which the lit row of a result has its largest value, by what is drawn.
  function largest(picture, row) {
    const [, rows, columns] = picture.cells.shape;
    const start = (head(picture) * rows + Math.min(rows - 1, Math.floor(row / picture.box[0]))) * columns;
    const cells = picture.cells.subarray(start, start + columns);
    const middle = picture.scales[head(picture)][2] === "diverging" ? (NO_VALUE - 1) / 2 : 0;
    let best = 0;
    cells.forEach((cell, at) => {
      if (cell !== NO_VALUE && Math.abs(cell - middle) > Math.abs(cells[best] - middle)) best = at;
    });
    return best * picture.box[1];
  }

  function outline(x, y, w, h) {
    strokeBox(context, rgb(view.theme.thread), 2, x - 1, y - 1, w + 2, Math.max(2, h) + 2);
  }

  // The token of a row: its patch or its word, left of it.
  function drawToken(lane, x, y) {
    const { mark, patch } = film.streams[0].lanes[lane];
    if (patch !== null && thumbs?.photo?.ready) {
      drawPatch(context, thumbs.film, thumbs.photo, patch, x - 26, y - 10, 20, 20);
      return;
    }
    const look = { font: "600 13px system-ui", colour: view.theme.ink, align: "right" };
    drawText(context, [...mark].slice(0, 7).join(""), x - 6, y, look);
  }

  function drawPicture(index, box, alpha, filled, label) {
    const picture = film.pictures[index];
    context.globalAlpha = alpha;
    fillBox(context, view.theme.empty, box.x, box.y, box.w, box.h);
    const canvas = canvasOf(index, head(picture));
    const [, high] = picture.cells.shape;
    const rows = Math.ceil(high * filled);
    context.imageSmoothingEnabled = false;
    if (rows) context.drawImage(canvas, 0, 0, canvas.width, rows, box.x, box.y, box.w, (box.h * rows) / high);
    strokeBox(context, view.theme.line, 1, box.x - 0.5, box.y - 0.5, box.w + 1, box.h + 1);
    context.fillStyle = view.theme.ink;
    context.textBaseline = "middle";
    drawName(context, picture.symbol, box.x + box.w / 2, box.y - 14, 19);
    drawText(context, label, box.x + box.w / 2, box.y + box.h + 12, { font: "12px system-ui", colour: view.theme.soft });
    context.globalAlpha = 1;
  }

  // Draws a part of a step, 0 to 1. What the step before drew, too, moves from there to its place.
  function draw(at, part) {
    const beat = film.beats[at];
    context.clearRect(0, 0, view.place.width, view.place.height);
    const boxes = placePictures(film, beat, view.place.flow);
    const before = film.beats[at - 1];
    const earlier = before ? placePictures(film, before, view.place.flow) : [];
    const result = beat.drawn.length - 1;
    view.place.boxes = [];
    const lane = film.streams.length ? eye.focusOf(0) : null;
    const row = lane === null ? -1 : film.slots.indexOf(lane);
    beat.drawn.forEach((index, slot) => {
      if (index === null) return;
      const picture = film.pictures[index];
      const from = before ? earlier[before.drawn.indexOf(index)] : null;
      const moved = ease(part / PHASES[0]);
      const box = from && slot !== result ? Object.fromEntries(["x", "y", "w", "h"].map((side) => [side, mix(from[side], boxes[slot][side], moved)])) : boxes[slot];
      const filled = slot === result ? ease((part - PHASES[1]) / (1 - PHASES[1])) : 1;
      drawPicture(index, box, slot === result || from ? 1 : moved, filled, picture.full.join(" × "));
      view.place.boxes.push({ index, box, rows: ofTokens(picture) ? picture.full[0] : 0 });
      if (row < 0 || !ofTokens(picture) || moved < 1 || (slot === result && filled * picture.full[0] < row)) return;
      const high = box.h / picture.full[0];
      outline(box.x, box.y + row * high, box.w, high);
      if (slot === 0 || !beat.product) drawToken(lane, box.x, box.y + (row + 0.5) * high);
      if (!beat.product || slot !== result) return;
      const column = largest(picture, row);
      const wide = box.w / picture.full[1];
      outline(boxes[1].x + column * wide, boxes[1].y, Math.max(1, wide), boxes[1].h);
    });
    if (!beat.product && boxes.length > 1 && boxes[result]) {
      const [target, look] = [boxes[result], { font: "22px system-ui", colour: view.theme.ink }];
      drawText(context, "→", target.x - MARGIN.left - ACROSS / 2, target.y + target.h / 2, look);
    }
    return 0;
  }
  return { draw, alone: () => false };
}
