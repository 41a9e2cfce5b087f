// What goes in: the photo in its patches, the text in its tokens, the matrix of attention below a text, and any other
// input as a wave or in colours.

import { makeCanvas } from "../../../scripts/dom.js";
import { cellOf } from "../../../scripts/cells.js";
import { maximum, meanOf, paintMatrix } from "../../../scripts/heatmap.js";
import { AMBER, LIT, hatch, hatchOutside, paintLight, sketchOf } from "../../../scripts/photo.js";
import { kindOf, viewsOf } from "../film.js";
import { rgb } from "./colours.js";
import { drawText, fillBox, strokeBox } from "./pen.js";

// The photo, and the grey sketch of it that attention is drawn on.
export function loadPhoto(film, done) {
  if (!film.photo) return null;
  const photo = { image: new Image(), ready: false };
  photo.image.src = film.photo.uri;
  const ready = () => {
    photo.ready = true;
    photo.sketch = sketchOf(photo.image, film.photo);
    done();
  };
  // Decoding ahead may fail where the page is left; a picture that has loaded can be drawn all the same.
  photo.image.decode().then(ready, (error) => {
    if (photo.image.complete && !photo.image.naturalWidth) throw error;
    if (photo.image.complete) ready();
  });
  return photo;
}

// The part of the photo that the model gets, in its pixels.
export function cropOf({ crop }) {
  const [x, y, right, bottom] = crop;
  return { x, y, w: right - x, h: bottom - y };
}

export const patchBox = ({ rows, columns }, box, patch) => {
  const [row, column] = cellOf(patch, columns);
  return { x: box.x + (column * box.w) / columns, y: box.y + (row * box.h) / rows, w: box.w / columns, h: box.h / rows };
};

// One patch of the photo into a rectangle.
export function drawPatch(context, film, photo, patch, x, y, w, h) {
  const from = patchBox(film.photo, cropOf(film.photo), patch);
  context.drawImage(photo.image, from.x, from.y, from.w, from.h, x, y, w, h);
}

// The part of the photo that the model does not get, around the part that it gets in `box`: hatched, and not dark.
export function drawOutside(context, film, photo, box, alpha) {
  if (!photo?.ready || !alpha) return;
  const [inside, [width, height]] = [cropOf(film.photo), film.photo.photo];
  const scale = box.w / inside.w;
  const all = { x: box.x - inside.x * scale, y: box.y - inside.y * scale, w: width * scale, h: height * scale };
  context.globalAlpha = alpha;
  hatchOutside(context, all, box, photo.image);
  context.globalAlpha = 1;
}

// The photo: `apart` 0 to 1 pulls its patches apart, `grey` 0 to 1 fades to grey, `weights` by patch are amber on it where
// they are `lit` 0 to 1, `closed` patches are dark, `hidden` ones are hatched.
export function drawPhoto(context, film, photo, box, { alpha, apart, grey, lit, weights, closed, hidden, focus, theme }) {
  if (!photo?.ready || !alpha) return;
  context.globalAlpha = alpha;
  const { rows, columns } = film.photo;
  const crop = cropOf(film.photo);
  const draw = (image, share = 1) => {
    const part = [crop.x, crop.y, crop.w, crop.h].map((side) => side * share);
    context.drawImage(image, ...part, box.x, box.y, box.w, box.h);
  };
  const smooth = (context.imageSmoothingEnabled = box.w < 3 * crop.w);
  if (apart > 0) {
    const inset = apart * Math.min(2.2, (0.06 * box.w) / columns);
    for (let patch = 0; patch < rows * columns; patch++) {
      const { x, y, w, h } = patchBox(film.photo, box, patch);
      drawPatch(context, film, photo, patch, x + inset, y + inset, w - 2 * inset, h - 2 * inset);
    }
  } else draw(photo.image);
  context.globalAlpha = 1;
  if (grey > 0) {
    context.globalAlpha = grey;
    draw(photo.sketch, photo.sketch.width / film.photo.photo[0]);
    context.globalAlpha = 1;
  }
  for (const patch of hidden) coverPatch(context, patchBox(film.photo, box, patch), theme);
  if (weights && lit > 0) {
    const most = maximum(weights) || 1;
    const light = (photo.light ??= makeCanvas(columns, rows));
    const shares = weights.map((weight) => weight / most);
    paintLight(light, columns, shares, (patch) => closed && !weights[patch], (patch) => hidden.includes(patch));
    context.globalAlpha = LIT * lit;
    context.imageSmoothingEnabled = false;
    context.drawImage(light, box.x, box.y, box.w, box.h);
    context.imageSmoothingEnabled = smooth;
    context.globalAlpha = 1;
  }
  if (focus !== null && focus !== undefined) {
    const { x, y, w, h } = patchBox(film.photo, box, focus);
    strokeBox(context, "#000", 4, x, y, w, h);
    strokeBox(context, "#fff", 2, x, y, w, h);
  }
}

// A patch that a tower never gets.
function coverPatch(context, box, theme) {
  context.save();
  context.beginPath();
  context.rect(box.x, box.y, box.w, box.h);
  context.clip();
  fillBox(context, theme.paper, box.x, box.y, box.w, box.h);
  hatch(context, box, theme.line, 7);
  context.restore();
}

// The words of a stream as chips in a rectangle: where each stands, in lines.
export function chips(context, stream, box, largest = 19) {
  const words = stream.lanes.flatMap((lane, at) => (lane.word ? [{ lane: at, mark: lane.mark }] : []));
  const letters = words.every(({ mark }) => [...mark].length === 1);
  for (let size = largest; size >= 7; size--) {
    context.font = `${letters ? 600 : 500} ${size}px ui-monospace, monospace`;
    const [high, gap, room] = [1.62 * size, letters ? 1 : 4, letters ? 0.5 * size : 0.9 * size];
    let [x, y] = [0, 0];
    const out = [];
    for (const { lane, mark } of words) {
      const wide = context.measureText(mark).width + room;
      if (x && x + wide > box.w) [x, y] = [0, y + high + gap];
      out.push({ lane, mark, x: box.x + x, y: box.y + y, w: wide, h: high, size });
      x += wide + gap;
    }
    if (y + high <= box.h || size === 7) return out.filter((chip) => chip.y + chip.h <= box.y + box.h + 1);
  }
  return [];
}

// The same in the middle of the stage, as large as they fit.
export function largeChips(context, stream, box) {
  const placed = chips(context, stream, box, 44);
  const [right, bottom] = [(chip) => chip.x + chip.w, (chip) => chip.y + chip.h].map((edge) => Math.max(...placed.map(edge)));
  const [dx, dy] = [(box.x + box.w - right) / 2, (box.y + box.h - bottom) / 2];
  return placed.map((chip) => ({ ...chip, x: chip.x + dx, y: chip.y + dy }));
}

// The chips, with the attention that each gets as its ground.
export function drawChips(context, placed, { weights, focus, theme, alpha = 1 }) {
  const most = weights ? placed.reduce((a, chip) => Math.max(a, weights[chip.lane]), 0) || 1 : 1;
  for (const chip of placed) {
    context.globalAlpha = alpha;
    fillBox(context, theme.empty, chip.x, chip.y, chip.w, chip.h);
    if (weights) fillBox(context, rgb(AMBER, (0.85 * weights[chip.lane]) / most), chip.x, chip.y, chip.w, chip.h);
    const strong = weights && weights[chip.lane] / most > 0.5;
    const look = { font: `600 ${chip.size}px ui-monospace, monospace`, colour: strong ? "#181000" : theme.ink };
    drawText(context, chip.mark, chip.x + chip.w / 2, chip.y + chip.h / 2, look);
    if (chip.lane === focus) strokeBox(context, theme.focus, 2, chip.x, chip.y, chip.w, chip.h);
  }
  context.globalAlpha = 1;
}

// The matrix of attention, queries down and keys across; what no head sees is hatched, but for rows in which all weights
// are 0. `shown` 0 to 1 draws it row by row.
export function drawMatrix(context, look, head, box, { focusToken, shown, theme }) {
  const [rows, keys] = [look.queries.length, look.keys.length];
  const views = viewsOf(look, head);
  const [wide, high] = [box.w / keys, box.h / rows];
  const closed = new Path2D();
  const weight = (view, query, key) => look.weights[(view * rows + query) * keys + key];
  const nothing = (query) => kindOf(look, look.slots[look.queries[query]], -1) === "nothing";
  const shut = (query, key) => viewsOf(look, -1).every((view) => weight(view, query, key) === 0) && !nothing(query);
  for (let query = 0; query < Math.ceil(rows * shown); query++) {
    const row = meanOf(look.weights, views, rows * keys, query * keys, keys);
    const most = maximum(row) || 1;
    for (let key = 0; key < keys; key++) {
      const [x, y] = [box.x + key * wide, box.y + query * high];
      if (row[key] === 0 && shut(query, key)) closed.rect(x, y, wide, high);
      else if (row[key] > 0) fillBox(context, rgb(AMBER, 0.1 + (0.9 * row[key]) / most), x, y, wide + 0.3, high + 0.3);
    }
  }
  context.save();
  context.clip(closed);
  hatch(context, box, theme.line, 6);
  context.restore();
  strokeBox(context, theme.line, 1, box.x, box.y, box.w, box.h);
  if (focusToken >= 0 && focusToken < rows * shown) {
    strokeBox(context, theme.focus, 2, box.x, box.y + focusToken * high, box.w, Math.max(3, high));
  }
}

// The cells of a matrix in their colours, a pixel for each; what is painted once is kept.
function painted(input) {
  if (input.canvas) return input.canvas;
  const [rows, columns] = input.cells.shape;
  const canvas = (input.canvas = makeCanvas(columns, rows));
  paintMatrix(canvas, input.cells.shape, input.cells, 0, 1, input.colours);
  return canvas;
}

// Where an input stands in an area: in its proportion, but never a hair's breadth.
function inputBox({ full, wave }, area) {
  const room = { w: area.w - 24, h: area.h - 40 };
  const [rows, columns] = wave ? [1, 4] : full;
  const unit = Math.min(room.w / columns, room.h / rows, wave ? Infinity : 24);
  const [w, h] = [Math.max(unit * columns, 0.25 * room.w), Math.max(unit * rows, 0.12 * room.h)];
  return { x: area.x + (area.w - w) / 2, y: area.y + 8 + (room.h - h) / 2, w, h };
}

export function drawInput(context, input, area, alpha, theme) {
  const { x, y, w, h } = inputBox(input, area);
  context.globalAlpha = alpha;
  if (input.wave) {
    const columns = input.cells.shape[1];
    context.fillStyle = rgb(theme.high);
    for (let at = 0; at < columns; at++) {
      const before = Math.max(0, at - 1); // a column reaches to the one before it, so that the wave has no gaps
      const ends = [Math.max(input.cells[columns + at], input.cells[before]), Math.min(input.cells[at], input.cells[columns + before])];
      const [top, bottom] = ends.map((share) => y + (h * (1 - share)) / 2);
      context.fillRect(x + (at * w) / columns, top, Math.max(1, w / columns), Math.max(1, bottom - top));
    }
  } else {
    context.imageSmoothingEnabled = false;
    context.drawImage(painted(input), x, y, w, h);
  }
  strokeBox(context, theme.line, 1, x - 0.5, y - 0.5, w + 1, h + 1);
  const shape = input.full.map((count) => count.toLocaleString("en")).join(" × ");
  drawText(context, shape, x + w / 2, y + h + 14, { font: "13px system-ui", colour: theme.soft });
  context.globalAlpha = 1;
}
