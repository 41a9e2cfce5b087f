// Matrices as pictures: a canvas with a pixel for each cell, and the colours that cells have.

/** Gives each cell, row after row, a pixel of a canvas, in a colour of four bytes. */
export function paintCells(canvas, columns, cells, colourOf) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, cells.length / columns);
  cells.forEach((cell, at) => image.data.set(colourOf(cell, at), 4 * at));
  context.putImageData(image, 0, 0);
}

/** Paints cells between `low` and `high` in the colours of a table; what is no number stays clear. */
export function paintMatrix(canvas, [rows, columns], cells, low, high, table) {
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const last = table.length / 3 - 1;
  const scale = last / (high - low);
  for (let cell = 0; cell < cells.length; cell++) {
    if (!Number.isFinite(cells[cell])) continue;
    const colour = 3 * Math.min(last, Math.max(0, Math.round((cells[cell] - low) * scale)));
    for (let channel = 0; channel < 3; channel++) image.data[4 * cell + channel] = table[colour + channel];
    image.data[4 * cell + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

const STOPS = 18; // colours of a ramp

/** Colours of a table from one end to the other, as style sheets write them. */
export function ramp(table) {
  const step = (table.length / 3 - 1) / (STOPS - 1);
  const colour = (at) => table.subarray(3 * at, 3 * at + 3);
  return Array.from({ length: STOPS }, (_, stop) => `rgb(${colour(Math.round(stop * step)).join(",")})`);
}

/** The same as a bar, `to` one of its sides. */
export const gradient = (table, to) => `linear-gradient(to ${to}, ${ramp(table).join(",")})`;

/** The mean of matrices by their numbers, of matrices of `size` cells one after the other; or that of `count` cells of
 *  each, from one on. */
export function meanOf(cells, which, size, from = 0, count = size) {
  const mean = new Float32Array(count);
  for (const matrix of which) {
    for (let at = 0; at < count; at++) mean[at] += cells[matrix * size + from + at] / which.length;
  }
  return mean;
}

/** The largest of some numbers, at least 0. */
export const maximum = (numbers) => numbers.reduce((most, number) => Math.max(most, number), 0);
