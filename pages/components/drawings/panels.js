// Matrices beside each other: a canvas of one pixel for each cell, with the names of its axes and a bar of colours.

function drawPanel(panel, colours) {
  const { title, axes, first, box, full, ends, names, frame, cells } = panel;
  const [rows, columns] = cells.shape;
  const canvas = element("canvas", "cells");
  paintMatrix(canvas, cells.shape, cells, ...ends, colours[panel.scale]);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}: ${rows} × ${columns}, ${axes[0] || names.join(", ")} by ${axes[1]}, from ${numeral(ends[0], 3)} to ${numeral(ends[1], 3)}`);
  canvas.style.aspectRatio = panel.square ? `${columns} / ${rows}` : "";
  const row = (at) => names[at] ?? signed(String(first[0] + at * box[0]));
  const column = (at) => signed(String(first[1] + at * box[1]));
  const [down, across] = [element("div", "ticks rows"), element("div", "ticks columns")];
  ticks(down, rows, names.length ? rows : 8, "top", row);
  ticks(across, columns, 8, "left", column);
  if (names.length) down.style.minWidth = `${0.52 * Math.max(...names.map((name) => name.length))}em`;
  const stripe = element("div", "stripe");
  stripe.style.background = gradient(colours[panel.scale], "right");
  const bar = element("div", "bar", element("span", "", numeral(ends[0], 3)), stripe, element("span", "", numeral(ends[1], 3)));
  const read = element("p", "read", "Point at a cell to read it.");
  read.dataset.aside = "";
  for (const part of [down, across, bar, read]) part.setAttribute("aria-hidden", "true");
  canvas.onpointermove = canvas.onpointerdown = (event) => {
    const [i, j] = nearestCell(event, canvas, rows, columns);
    const [down, wide] = [covered(i, box[0], full[0]), covered(j, box[1], full[1])];
    const mean = down[1] > down[0] || wide[1] > wide[0] ? "mean of " : "";
    const counted = (places, from) => signed(range(places.map((at) => at + from - 1)));
    const name = names.length ? names[i] : `${axes[0]} ${counted(down, first[0])}`;
    read.textContent = `${mean}${name}, ${axes[1]} ${counted(wide, first[1])}: ${numeral(cells[i * columns + j], 3)}`;
  };
  const figure = element("figure", "", element("figcaption", "", title));
  figure.dataset.figure = title;
  const plot = element("div", "plot", element("span", "axis down", axes[0]), down, canvas, across, element("span", "axis across", axes[1]), bar);
  if (frame) {
    const [axis, index, words] = frame;
    const [from, size] = axis === "row" ? ["top", "height"] : ["left", "width"];
    const box = element("div", `frame ${axis}`);
    box.style[from] = `${(100 * index) / full[axis === "row" ? 0 : 1]}%`;
    box.style[size] = `${100 / full[axis === "row" ? 0 : 1]}%`;
    const over = element("div", "over", canvas, box);
    plot.append(over);
    read.textContent = words;
  }
  figure.append(plot, read);
  return figure;
}

export default function ({ data, parentElement }) {
  const { panels, colours } = unpack(data);
  const grid = parentElement.querySelector(".grid");
  grid.classList.toggle("one", panels.length === 1);
  grid.classList.toggle("many", panels.length > 2);
  grid.classList.toggle("four", panels.length === 4);
  grid.replaceChildren(...panels.map((panel) => drawPanel(panel, colours)));
}
