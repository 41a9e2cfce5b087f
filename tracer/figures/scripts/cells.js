// Grids of cells on screen: which cell is pointed at, how a key moves, and where a frame lies.

/** Steps of arrow keys: rows down, and columns to the right. */
export const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export const within = (at, size) => Math.min(size - 1, Math.max(0, at));

/** The row and the column of a cell, by its number among those of a grid. */
export const cellOf = (number, columns) => [Math.floor(number / columns), number % columns];

/** The row and the column at a point, where a box has so many; they go on beyond it. */
export const cellAt = ([x, y], box, rows, columns) => [
  Math.floor(((y - box.y) / box.h) * rows),
  Math.floor(((x - box.x) / box.w) * columns),
];

/** The same for the pointer and an element. */
function pointedCell({ clientX, clientY }, element, rows, columns) {
  const { x, y, width, height } = element.getBoundingClientRect();
  return cellAt([clientX, clientY], { x, y, w: width, h: height }, rows, columns);
}

/** The same; null beyond the box. */
export function cellUnder(event, box, rows, columns) {
  const [row, column] = pointedCell(event, box, rows, columns);
  return row === within(row, rows) && column === within(column, columns) ? [row, column] : null;
}

/** The same; beyond the box, the cell that is nearest. */
export function nearestCell(event, box, rows, columns) {
  const [row, column] = pointedCell(event, box, rows, columns);
  return [within(row, rows), within(column, columns)];
}

/** Lays an element over the part of a box that begins at (x, y), in the units in which the box has its `size`. */
export function layOver(part, [x, y, wide, high], [width, height] = [1, 1]) {
  const [left, top] = [`${(100 * x) / width}%`, `${(100 * y) / height}%`];
  Object.assign(part.style, { left, top, width: `${(100 * wide) / width}%`, height: `${(100 * high) / height}%` });
}
