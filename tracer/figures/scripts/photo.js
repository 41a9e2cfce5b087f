// A photo under a map of attention: a grey sketch in which every patch has the same mean, so that a patch is the brighter
// the larger its weight, whatever the photo shows there. tracer/figures/attention_maps.py does the same.

import { makeCanvas } from "./dom.js";
import { paintCells } from "./heatmap.js";

export const SKETCH = { grey: 72, contrast: 0.7, passes: 6, side: 640 };
export const AMBER = [255, 176, 0];
export const LIT = 0.8; // opacity of the largest weight
export const SHUT = [20, 24, 31]; // what a query may not attend to, darker than any weight

/** The sketch of an image, on a canvas. `photo` are its sides, and `crop` is what the patches cover of it: left, top, right
 *  and bottom. */
export function sketchOf(image, { photo, crop, rows, columns }) {
  const scale = Math.min(1, SKETCH.side / Math.max(...photo));
  const [width, height] = photo.map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = makeCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  const drawn = context.getImageData(0, 0, width, height);
  const { data } = drawn;
  const grey = new Float32Array(width * height);
  for (let at = 0; at < grey.length; at++) grey[at] = 0.299 * data[4 * at] + 0.587 * data[4 * at + 1] + 0.114 * data[4 * at + 2];
  const [left, top, right, bottom] = crop;
  const axis = (length, side, from, to, count) =>
    Float32Array.from({ length }, (_, at) => ((((at + 0.5) / length) * side - from) / (to - from)) * count);
  const [x, y] = [axis(width, photo[0], left, right, columns), axis(height, photo[1], top, bottom, rows)];
  for (let pass = 0; pass < SKETCH.passes; pass++) subtract(grey, meansOf(grey, x, y, rows, columns), x, y, true);
  const limit = SKETCH.grey;
  for (let at = 0; at < grey.length; at++) grey[at] = limit * Math.tanh((SKETCH.contrast * grey[at]) / limit);
  subtract(grey, meansOf(grey, x, y, rows, columns), x, y, false);
  for (let at = 0; at < grey.length; at++) data[4 * at] = data[4 * at + 1] = data[4 * at + 2] = grey[at] + limit;
  context.putImageData(drawn, 0, 0);
  return canvas;
}

// The mean of each patch, row by row; `x` and `y` are the places of the pixels, in patches.
function meansOf(grey, x, y, rows, columns) {
  const means = Object.assign(new Float64Array(rows * columns), { rows, columns });
  const counts = new Uint32Array(rows * columns);
  y.forEach((v, row) => {
    if (v < 0 || v >= rows) return;
    const [first, start] = [Math.floor(v) * columns, row * x.length];
    for (let column = 0; column < x.length; column++) {
      const u = x[column];
      if (u < 0 || u >= columns) continue;
      means[first + Math.floor(u)] += grey[start + column];
      counts[first + Math.floor(u)] += 1;
    }
  });
  counts.forEach((count, patch) => {
    means[patch] /= Math.max(1, count);
  });
  return means;
}

// Takes the means away: bilinear between the middles of patches where it is `smooth`, else patch by patch.
function subtract(grey, means, x, y, smooth) {
  const { rows, columns } = means;
  const between = (place, count) => {
    const at = Math.min(count - 1, Math.max(0, smooth ? place - 0.5 : Math.floor(place)));
    const low = Math.min(Math.floor(at), Math.max(0, count - 2));
    return [low, Math.min(count - 1, low + 1), at - low];
  };
  const across = Array.from(x, (u) => between(u, columns));
  const [near, far] = [0, 1].map((side) => Int32Array.from(across, (ends) => ends[side]));
  const right = Float64Array.from(across, (ends) => ends[2]);
  const line = new Float64Array(columns); // the means at the height of a row of pixels
  y.forEach((v, row) => {
    const [low, high, down] = between(v, rows);
    for (let column = 0; column < columns; column++) {
      line[column] = means[low * columns + column] * (1 - down) + means[high * columns + column] * down;
    }
    const start = row * x.length;
    for (let at = 0; at < x.length; at++) grey[start + at] -= line[near[at]] * (1 - right[at]) + line[far[at]] * right[at];
  });
}

/** Lays light over a photo, a pixel for each patch: amber, the clearer the smaller its share of the largest weight, and
 *  dark where it is closed. What is covered stays clear. */
export function paintLight(canvas, columns, shares, isClosed, isCovered = () => false) {
  paintCells(canvas, columns, shares, (share, patch) => {
    if (isCovered(patch)) return [0, 0, 0, 0];
    return isClosed(patch) ? [...SHUT, 255] : [...AMBER, Math.round(255 * Math.min(1, share))];
  });
}

/** Strokes at an angle over a box, `apart` pixels from each other. */
export function hatch(context, { x, y, w, h }, colour, apart) {
  Object.assign(context, { strokeStyle: colour, lineWidth: 1 });
  context.beginPath();
  for (let at = -h; at < w; at += apart) {
    context.moveTo(x + at, y + h);
    context.lineTo(x + at + h, y);
  }
  context.stroke();
}

/** Darkens and hatches what lies in a box outside another one: pixels that the model does not see. An image is drawn
 *  there first. */
export function hatchOutside(context, all, inside, image = null) {
  context.save();
  const outside = new Path2D();
  for (const { x, y, w, h } of [all, inside]) outside.rect(x, y, w, h);
  context.clip(outside, "evenodd");
  if (image) context.drawImage(image, all.x, all.y, all.w, all.h);
  context.fillStyle = `rgb(${SHUT.join(" ")} / 0.5)`;
  context.fillRect(all.x, all.y, all.w, all.h);
  hatch(context, all, "rgb(255 255 255 / 0.45)", 10);
  context.restore();
}
