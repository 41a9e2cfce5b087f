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
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, weights.length / columns);
  const hidden = map.closed.match(/\w\w/g).map((digits) => parseInt(digits, 16));
  weights.forEach((weight, at) => {
    const index = 3 * Math.round(255 * Math.min(1, position(weight, most, scale)));
    const colour = closed(at) ? hidden : map.colours.subarray(index, index + 3);
    image.data.set([...colour, 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
}

const maximum = (weights) => weights.reduce((a, b) => Math.max(a, b), 0);

// The weights on the patches: CLS and its like are no pixels, and don't stretch the scale.
const onPatches = ({ tokens }, weights) => Float32Array.from(tokens, (token) => (token === null ? 0 : weights[token]));

// Where the scale of a matrix ends: on a linear one a few large weights would leave all others black.
const OUTLIERS = 0.005; // the share of cells that may lie beyond it
function scaleEnd(cells, open, scale) {
  if (scale === "log") return maximum(cells);
  const ordered = cells.filter((_, cell) => open(cell)).sort();
  return ordered[Math.floor((1 - OUTLIERS) * (ordered.length - 1))] ?? 0;
}

// The bar below a picture: its ticks, and a mark at the even share.
function drawBar(bar, map, most, scale, even, beyond = false) {
  const stops = Array.from({ length: 18 }, (_, i) => `rgb(${map.colours.subarray(45 * i, 45 * i + 3).join(",")})`);
  bar.querySelector(".gradient").style.setProperty("--paint", `linear-gradient(to right, ${stops.join(",")})`);
  const shares = scale === "log" ? [0.001, 0.01, 0.1, 1] : [0, 0.25, 0.5, 0.75, 1];
  bar.querySelector(".ticks").replaceChildren(
    ...shares.map((share, index) => {
      const tick = document.createElement("span");
      const least = scale === "log" && index === 0 ? "≤ " : "";
      tick.textContent = least + (beyond && share === 1 ? "≥ " : "") + (share ? percent(share * most) : "0");
      tick.style.left = `${100 * position(share, 1, scale)}%`;
      return tick;
    }),
  );
  const mark = bar.querySelector(".even");
  mark.style.left = `${100 * position(even, most, scale)}%`;
  mark.hidden = even > most;
}

// Below a bar: what the grey cells are.
function grey(legend, map, words) {
  legend.hidden = !words;
  legend.querySelector("i").style.setProperty("--paint", map.closed);
  legend.querySelector("span").textContent = words;
}
