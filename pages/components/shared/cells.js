// Grids of cells on screen: which cell is pointed at, how a key moves, and where a frame lies.

/** Steps of arrow keys: rows down, and columns to the right. */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const within = (at, size) => Math.min(size - 1, Math.max(0, at));

/** The row and the column that the pointer is at, where a box has so many; they go on beyond it. */
function pointedCell({ clientX, clientY }, box, rows, columns) {
  const { left, top, width, height } = box.getBoundingClientRect();
  return [Math.floor(((clientY - top) / height) * rows), Math.floor(((clientX - left) / width) * columns)];
}

/** The same; null beyond the box. */
function cellUnder(event, box, rows, columns) {
  const [row, column] = pointedCell(event, box, rows, columns);
  return row === within(row, rows) && column === within(column, columns) ? [row, column] : null;
}

/** The same; beyond the box, the cell that is nearest. */
function nearestCell(event, box, rows, columns) {
  const [row, column] = pointedCell(event, box, rows, columns);
  return [within(row, rows), within(column, columns)];
}

/** Lays an element over the part of a box that begins at (x, y), in the units in which the box has its `size`. */
function layOver(part, [x, y, wide, high], [width, height] = [1, 1]) {
  const [left, top] = [`${(100 * x) / width}%`, `${(100 * y) / height}%`];
  Object.assign(part.style, { left, top, width: `${(100 * wide) / width}%`, height: `${(100 * high) / height}%` });
}
