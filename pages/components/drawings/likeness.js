// How alike learned positions are: all patches as tiles on the grid, and the tile of the one that is chosen, large.

const LIKE = ["patch"];

export default function ({ data, parentElement }) {
  const find = (selector) => parentElement.querySelector(selector);
  const { facts, body } = unpack(data);
  const map = unpack(body);
  const { rows, columns, colours, cosines, low } = map;
  const count = rows * columns;
  const me = keepPlace({ facts });
  const standing = ({ patch }) => (/^\d+$/.test(patch ?? "") && Number(patch) < count ? Number(patch) : map.start);
  let chosen = standing(placeInAddress(LIKE));
  const tile = (patch) => cosines.subarray(patch * count, (patch + 1) * count);
  const place = (patch) => {
    const [row, column] = cellOf(patch, columns);
    return `row ${row + 1}, column ${column + 1}`;
  };

  const [one, every] = [find(".one .cells"), find(".every .cells")];
  const wide = columns * (columns + 1) - 1;
  const tall = rows * (rows + 1) - 1;
  const all = new Float32Array(wide * tall).fill(NaN);
  for (let patch = 0; patch < count; patch++) {
    const [top, left] = [Math.floor(patch / columns) * (rows + 1), (patch % columns) * (columns + 1)];
    tile(patch).forEach((value, at) => (all[(top + Math.floor(at / columns)) * wide + left + (at % columns)] = value));
  }
  paintMatrix(every.querySelector("canvas"), [tall, wide], all, low, 1, colours);
  every.style.aspectRatio = `${wide} / ${tall}`;
  one.style.aspectRatio = `${columns} / ${rows}`;
  every.setAttribute("aria-label", `The cosines of all ${count} patches, each a tile at its place on the grid`);
  find(".stripe").style.background = gradient(colours, "right");
  find(".bar").firstElementChild.textContent = numeral(low, 2);

  const draw = () => {
    const cells = tile(chosen);
    paintMatrix(one.querySelector("canvas"), [rows, columns], cells, low, 1, colours);
    const others = [...cells.keys()].filter((patch) => patch !== chosen);
    const best = others.reduce((a, b) => (cells[b] > cells[a] ? b : a));
    const sentence = `The patch in ${place(chosen)} is most like the one in ${place(best)}: cosine ${numeral(cells[best], 2)}.`;
    one.setAttribute("aria-label", `The cosines of the patch in ${place(chosen)} with every patch`);
    find(".status").textContent = sentence;
    find(".one .title").textContent = `The patch in ${place(chosen)}`;
    const [top, left] = cellOf(chosen, columns);
    layOver(one.querySelector(".mark"), [left, top, 1, 1], [columns, rows]);
    layOver(every.querySelector(".mark"), [left * (columns + 1), top * (rows + 1), columns, rows], [wide, tall]);
  };
  const choose = (patch, held = false) => {
    chosen = patch;
    me.place.moved({ patch: String(patch) }, held);
    draw();
  };
  const under = (event) => {
    const [row, column] = nearestCell(event, event.currentTarget, rows, columns);
    return row * columns + column;
  };
  for (const grid of [one, every]) {
    handle(grid, "click", (event) => choose(under(event)));
    grid.onkeydown = (event) => {
      const step = ARROWS[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const [row, column] = cellOf(chosen, columns);
      choose(within(row + step[0], rows) * columns + within(column + step[1], columns), event.repeat);
    };
  }
  one.onpointermove = (event) => {
    const patch = under(event);
    find(".read").textContent = `${place(patch)}: cosine ${numeral(tile(chosen)[patch], 3)}`;
  };
  draw();
  return listen(parentElement, me, LIKE, (place) => {
    chosen = standing(place);
    draw();
  });
}
