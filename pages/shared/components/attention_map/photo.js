// The photo with the map of one row over it. It lies in its own pixels; all else is placed in shares of it.

function layPhoto(map, find, state, choose, press) {
  const photo = find(".photo");
  const heat = find(".heat");
  const [left, top, right, bottom] = map.crop;
  const [width, height] = map.photo;
  const address = URL.createObjectURL(new Blob([map.jpegBytes], { type: "image/jpeg" }));
  find("img").src = address;
  photo.style.aspectRatio = `${width} / ${height}`;
  const place = (element, x, y, wide, high) =>
    Object.assign(element.style, {
      left: `${(100 * x) / width}%`,
      top: `${(100 * y) / height}%`,
      width: `${(100 * wide) / width}%`,
      height: `${(100 * high) / height}%`,
    });
  for (const element of [heat, find(".frame")]) place(element, left, top, right - left, bottom - top);
  heat.width = map.columns;
  heat.height = map.rows;

  const at = (event) => {
    const box = heat.getBoundingClientRect();
    const c = Math.floor(((event.clientX - box.left) / box.width) * map.columns);
    const r = Math.floor(((event.clientY - box.top) / box.height) * map.rows);
    return r < 0 || c < 0 || r >= map.rows || c >= map.columns ? null : map.first + r * map.columns + c;
  };
  photo.onpointermove = photo.onpointerdown = (event) => {
    const query = at(event);
    if (query !== null && query !== state.query && !state.pinned) choose({ query }, false);
  };
  photo.onclick = (event) => {
    const query = at(event);
    if (query !== null) press(query);
  };
  photo.onkeydown = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [r, c] = isPatch(map, state.query) ? cell(map, state.query) : [0, 0];
    const moved = (value, by, size) => Math.min(size - 1, Math.max(0, value + by));
    const query = map.first + moved(r, step[0], map.rows) * map.columns + moved(c, step[1], map.columns);
    choose({ query, pinned: true });
  };

  const opacity = find(".opacity input");
  opacity.oninput = () => {
    find(".over").style.setProperty("--overlay", opacity.value / 100);
    find(".opacity output").textContent = `${opacity.value} %`;
  };
  opacity.oninput();

  function draw(cells, open) {
    const weights = onPatches(map, row(map, cells, state.query));
    const most = maximum(weights);
    const closed = (patch) => isClosed(map, cells, state.layer, state.query, map.first + patch);
    paint(heat, map, weights, map.columns, most, state.scale, closed);
    drawBar(find(".over .bar"), map, most, state.scale, 1 / open.length);
    const shut = map.rows * map.columns - open.filter((token) => isPatch(map, token)).length;
    const patches = shut === 1 ? "1 patch is" : `${shut} patches are`;
    grey(find(".over .shut"), map, shut ? `${patches} closed to this query by ${maskName(map)} that ran` : "");
    const frame = find(".query");
    frame.hidden = !isPatch(map, state.query);
    frame.classList.toggle("pinned", state.pinned);
    if (!frame.hidden) {
      const [r, c] = cell(map, state.query);
      const [wide, high] = [(right - left) / map.columns, (bottom - top) / map.rows];
      place(frame, left + c * wide, top + r * high, wide, high);
    }
    const grid = `Photo with ${map.rows} rows and ${map.columns} columns of patches`;
    photo.setAttribute("aria-label", `${grid}. Query: ${queryName(map, state)}. Arrow keys move it.`);
  }
  return { draw, free: () => URL.revokeObjectURL(address) };
}
