// Heatmaps with their ticks, the names of their axes, and a bar of colours.

/** The cells of matrix number `place` of a picture; null where they did not come with the message. */
function cellsOf({ cells, which }, place) {
  const [at, size] = [which.indexOf(place), cells.length / which.length];
  return at < 0 ? null : cells.subarray(at * size, (at + 1) * size);
}

/** The places along an axis, of `count`, that a cell is drawn for: several where it is the mean of a box of values. */
const covered = (at, size, count) => [at * size, Math.min((at + 1) * size, count) - 1];

/** Those places in words, counted from 1: their name where it is one that has a name, else their numbers. */
const range = ([from, to], names) => (to > from ? `${from + 1} to ${to + 1}` : (names?.[from] ?? String(from + 1)));

/** The places along an axis that have a tick, so that at most `most` of `count` do. */
function places(count, most) {
  const rough = Math.max(1, count / most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough - 1e-9));
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}

function ticks(box, count, most, side, name) {
  box.replaceChildren(
    ...places(count, most).map((at) => {
      const tick = element("span", "", name(at));
      tick.style[side] = `${(100 * (at + 0.5)) / count}%`;
      return tick;
    }),
  );
}

/** The parts of a heatmap with axes, laid once. */
function layHeat(box) {
  const parts = { box };
  const part = (name, tag, className) => (parts[name] = element(tag, className));
  parts.canvas = element("canvas", "cells");
  parts.canvas.setAttribute("role", "img");
  const framed = element("div", "framed", parts.canvas, part("mark", "span", "cell-mark"));
  parts.mark.hidden = true;
  const bar = element("div", "bar-of-colours", part("symbol", "div", "symbol"), part("stripe", "div", "stripe"));
  parts.stripe.append(part("ends", "div", "ends"));
  box.append(part("down", "div", "axis down"), part("rows", "div", "ticks rows"), framed, bar);
  box.append(part("columns", "div", "ticks columns"), part("across", "div", "axis across"), part("read", "p", "read"));
  for (const name of ["rows", "columns"]) parts[name].setAttribute("aria-hidden", "true");
  bar.setAttribute("aria-hidden", "true");
  parts.read.dataset.aside = ""; // it is no part of the picture
  parts.read.setAttribute("aria-live", "off");
  box.classList.add("heat");
  return parts;
}

/** Draws one matrix of a tensor: `look` has its symbol, its plain name, the colours and those of a mask. */
function drawHeat(parts, picture, place, look) {
  const { canvas, read } = parts;
  const cells = cellsOf(picture, place);
  const [low, high, kind, alt] = picture.slices[picture.which.indexOf(place)];
  const shape = picture.cells.shape.slice(-2);
  const [rows, columns] = shape;
  const mask = kind === "mask";
  const table = mask ? look.mask : look.colours[kind];
  paintMatrix(canvas, shape, cells, mask ? 0 : low, mask ? 1 : high, table);
  canvas.setAttribute("aria-label", `Heatmap of ${look.plain}, ${alt}`);
  parts.box.style.setProperty("--tall", `${Math.min(450, Math.max(120, 7 * rows))}px`);
  parts.symbol.replaceChildren(maths(look.symbol));
  parts.stripe.style.background = mask
    ? `linear-gradient(to top, ${ramp(table)[0]} 50%, ${ramp(table).at(-1)} 50%)`
    : gradient(table, "top");
  const ends = mask ? [[25, numeral(low)], [75, "−∞"]] : [[0, high], [50, (low + high) / 2], [100, low]].map(([at, end]) => [at, numeral(end, 3)]);
  parts.ends.replaceChildren(
    ...ends.map(([at, text]) => {
      const end = element("span", "", text);
      end.style.top = `${at}%`;
      return end;
    }),
  );
  const [tall, wide] = picture.box;
  const named = (at) => picture.ticks?.[at] ?? String(at * wide + 1);
  const letters = Math.max(...places(columns, 9).map((at) => named(at).length));
  parts.columns.classList.toggle("turned", Boolean(picture.ticks) && letters * columns > 50);
  parts.columns.style.setProperty("--letters", Math.min(letters, 16));
  ticks(parts.columns, columns, picture.ticks && columns <= 24 ? 24 : 9, "left", named);
  ticks(parts.rows, rows, rows <= 12 ? 12 : 8, "top", (at) => String(at * tall + 1));
  parts.down.replaceChildren(element("span", "", ...sentence(picture.axes[0])));
  parts.across.replaceChildren(...sentence(picture.axes[1]));
  const hint = look.follow ? "Point at a cell to read it. Click it to follow its number." : "Point at a cell to read it.";
  read.textContent = hint;
  const rough = picture.cells.dtype === "f2";
  const words = (row, column, exact) => {
    const value = cells[row * columns + column];
    const rounded = mask ? (value ? numeral(low) : "−∞") : numeral(value, rough ? 3 : 4);
    const about = rough && !mask && Number.isFinite(value) && value !== 0 ? "about " : "";
    const [down, across] = spans(row, column);
    const mean = down[1] > down[0] || across[1] > across[0] ? "mean of " : "";
    const number = exact ?? `${about}${rounded}`;
    return `${mean}${picture.roles[0]} ${range(down)}, ${picture.roles[1]} ${range(across, picture.ticks)}: ${number}`;
  };
  const spans = (row, column) => [covered(row, tall, picture.full[0]), covered(column, wide, picture.full[1])];
  const placeAt = (row, column) => look.follow.place(place, ...spans(row, column));
  const point = ([row, column]) => {
    read.textContent = words(row, column);
    parts.pointed = look.follow && { place: placeAt(row, column), words: (exact) => words(row, column, exact) };
    if (look.follow) dispatchEvent(new CustomEvent("point", { detail: { place: parts.pointed.place } }));
  };
  const cellAt = (event) => nearestCell(event, canvas, rows, columns);
  handle(canvas, "pointermove pointerdown", (event) => point(cellAt(event)));
  parts.markAt = (at) => {
    parts.cursor = at;
    parts.mark.hidden = !at;
    if (at) layOver(parts.mark, [at[1], at[0], 1, 1], [columns, rows]);
  };
  parts.markPlace = (at) => { // of an index on the last two axes
    parts.markAt(at && [Math.floor(at[0] / tall), Math.floor(at[1] / wide)]);
  };
  parts.markAt(null);
  if (!look.follow) return;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "heatmap");
  const follow = (at) => {
    parts.markAt(at);
    dispatchEvent(new CustomEvent("cell", { detail: { place: placeAt(...at), fresh: true } }));
  };
  handle(canvas, "click", (event) => follow(cellAt(event)));
  canvas.onfocus = () => {
    if (canvas.matches(":focus-visible") && !parts.cursor) parts.markAt([0, 0]);
  };
  canvas.onkeydown = (event) => {
    const step = ARROWS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, column] = parts.cursor ?? [0, 0];
    if (step) {
      event.preventDefault();
      const at = [within(row + step[0], rows), within(column + step[1], columns)];
      parts.markAt(at);
      point(at);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      follow([row, column]);
    }
  };
}

/** Draws the maps of terms, one beside the other on one scale. */
function drawMaps(box, picture, place, colours) {
  const cells = cellsOf(picture, place);
  const size = cells.length / picture.names.length;
  const edge = picture.edges[picture.which.indexOf(place)];
  box.replaceChildren(
    ...picture.names.map((name, number) => {
      const canvas = element("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${name}, ${picture.full.join(" × ")}, query by key`);
      const map = cells.subarray(number * size, (number + 1) * size);
      paintMatrix(canvas, picture.cells.shape.slice(-2), map, -edge, edge, colours.diverging);
      return element("figure", "", element("figcaption", "", name), canvas);
    }),
  );
}
