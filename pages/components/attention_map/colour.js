// Weights as colours, and the bar that says which is which.

const DECADES = 3;

// 0 to 1 on the colour scale, linear from 0 to the largest weight or over the decades below it.
const position = (weight, most, scale) => {
  if (!(most > 0)) return 0;
  const share = weight / most;
  return scale === "log" ? Math.max(0, 1 + Math.log10(Math.max(share, 1e-30)) / DECADES) : share;
};

// `weights` onto a canvas of so many columns; where `closed` says so, in the colour of what a mask closes.
function paint(canvas, map, weights, columns, most, scale, closed = () => false) {
  const hidden = map.closed.match(/\w\w/g).map((digits) => parseInt(digits, 16));
  paintCells(canvas, columns, weights, (weight, at) => {
    const index = 3 * Math.round(255 * Math.min(1, position(weight, most, scale)));
    return [...(closed(at) ? hidden : map.colours.subarray(index, index + 3)), 255];
  });
}

// `weights` onto a canvas that lies over a photo, as amber light: the more of it, the larger the weight.
function glow(canvas, map, weights, columns, most, scale, closed) {
  const shares = Array.from(weights, (weight) => position(weight, most, scale));
  paintLight(canvas, columns, shares, closed, (patch) => map.tokens[patch] === null);
}

// Lines around the cells that are `inside`, on a canvas that lies over `columns` × `rows` of them.
const FINE = 24; // pixels of that canvas for each cell
function outline(canvas, columns, rows, lines) {
  Object.assign(canvas, { width: FINE * columns, height: FINE * rows });
  const context = canvas.getContext("2d");
  for (const { inside, colour, width } of lines) {
    const path = new Path2D();
    const within = (r, c) => r >= 0 && c >= 0 && r < rows && c < columns && inside(r * columns + c);
    for (let r = 0; r <= rows; r++) {
      for (let c = 0; c <= columns; c++) {
        const [x, y] = [FINE * c, FINE * r];
        if (within(r, c) !== within(r - 1, c)) path.rect(x, y, FINE, 0);
        if (within(r, c) !== within(r, c - 1)) path.rect(x, y, 0, FINE);
      }
    }
    for (const [strokeStyle, lineWidth] of [["rgb(0 0 0 / 0.7)", width + 1.5], [colour, width]]) {
      Object.assign(context, { strokeStyle, lineWidth, lineCap: "round" });
      context.stroke(path);
    }
  }
}

// The patches with at least half of the largest weight, and those with more than the even share.
const levels = (weights, most, even, closed, size = 1) => [
  { inside: (at) => !closed(at) && weights[at] > even, colour: "#fff", width: size },
  { inside: (at) => !closed(at) && most > 0 && weights[at] >= most / 2, colour: "#fff", width: 2.5 * size },
];

// The weights on the patches: CLS and its like are no pixels, and don't stretch the scale.
const onPatches = ({ tokens }, weights) => Float32Array.from(tokens, (token) => (token === null ? 0 : weights[token]));

// Where the scale of a matrix ends: on a linear one a few large weights would leave all others black.
const OUTLIERS = 0.005; // the share of cells that may lie beyond it
function scaleEnd(cells, open, scale) {
  if (scale === "log") return maximum(cells);
  const ordered = cells.filter((_, cell) => open(cell)).sort();
  return ordered[Math.floor((1 - OUTLIERS) * (ordered.length - 1))] ?? 0;
}

// The colours of a bar of light over a photo.
const mixed = (from, to, share) => Math.round(from + share * (to - from));
const lit = [0, 1].map((share) => `rgb(${AMBER.map((part) => mixed(SKETCH.grey, part, share * LIT)).join(",")})`);

// The bar below a picture: its ticks, and a mark at the even share. Where all weights are 0, there is none.
function drawBar(bar, stops, most, scale, even, beyond = false) {
  bar.hidden = !(most > 0);
  bar.querySelector(".gradient").style.setProperty("--paint", `linear-gradient(to right, ${stops.join(",")})`);
  const shares = scale === "log" ? [0.001, 0.01, 0.1, 1] : [0, 0.25, 0.5, 0.75, 1];
  bar.querySelector(".ticks").replaceChildren(
    ...shares.map((share, index) => {
      const least = scale === "log" && index === 0 ? "≤ " : "";
      const tick = element("span", "", least, beyond && share === 1 ? "≥ " : "", share ? percent(share * most) : "0");
      tick.style.left = `${100 * position(share, 1, scale)}%`;
      return tick;
    }),
  );
  const mark = bar.querySelector(".even");
  mark.style.left = `${100 * position(even, most, scale)}%`;
  mark.hidden = even > most;
}

// Below a bar: what the grey cells are.
function grey(legend, colour, words) {
  legend.hidden = !words;
  legend.querySelector("i").style.setProperty("--paint", colour);
  legend.querySelector("span").textContent = words;
}
