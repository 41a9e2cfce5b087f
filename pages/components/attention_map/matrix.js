// The matrix from token to token: a row for each query, a column for each key, cells that the mask closes in grey.

const LABEL = 15; // pixels that a label needs

function layMatrix(map, find, state, choose) {
  const grid = find(".grid");
  const canvas = find(".grid canvas");
  canvas.width = map.keys;
  canvas.height = map.queries;
  grid.style.aspectRatio = `${map.keys} / ${map.queries}`;
  grey(find(".tokens .shut"), map.closed, map.masks.length ? `closed by ${maskName(map)}` : "");
  find(".edges").replaceChildren(
    ...map.edges.flatMap((edge) =>
      [["top", map.queries, "row"], ["left", map.keys, "column"]].map(([side, size, name]) => {
        const line = element("div", name);
        line.style[side] = `${(100 * edge) / size}%`;
        return line;
      }),
    ),
  );

  // As many labels as there is room for: first the tokens that are no patch, since their names say more.
  function label(axis, marks, size, pixels, side) {
    const gap = Math.max(1, Math.ceil((LABEL * size) / Math.max(1, pixels)));
    const patches = (token) => Number(marks[token].startsWith("patch "));
    const wanted = [...Array(size).keys()].sort((a, b) => patches(a) - patches(b) || a - b);
    const chosen = [];
    for (const token of wanted) if (chosen.every((other) => Math.abs(other - token) >= gap)) chosen.push(token);
    axis.replaceChildren(
      ...chosen.map((token) => {
        const name = element("span", "", marks[token]);
        name.style[side] = `${(100 * (token + 0.5)) / size}%`;
        return name;
      }),
    );
    const room = side === "top" ? "Width" : "Height"; // what the longest of them needs, the keys’ turned
    axis.style[`min${room}`] = `${Math.max(...[...axis.children].map((name) => name.offsetWidth))}px`;
  }
  const labels = () => {
    label(find(".queries"), map.marks, map.queries, grid.clientHeight, "top");
    label(find(".keys"), map.keyMarks, map.keys, grid.clientWidth, "left");
  };
  grid.watcher?.disconnect(); // the one of the tower that was drawn before
  grid.watcher = new ResizeObserver(labels);
  grid.watcher.observe(grid);

  let cells, painted, most, beyond;
  const arrow = () => (state.view === "rollout" ? "←" : "→"); // who looks at whom, or what came from where
  const at = (event) => cellUnder(event, grid, map.queries, map.keys);
  const announce = (query, key) => {
    const closed = isClosed(map, cells, state.layer, query, key);
    const gets = closed ? `closed by ${maskName(map)}` : percent(cells[query * map.keys + key]);
    find(".cell").textContent = `${map.names[query]} ${arrow()} ${map.keyNames[key]}: ${gets}`;
    layOver(find(".at"), [key, query, 1, 1], [map.keys, map.queries]);
    find(".at").hidden = false;
  };
  grid.onpointermove = grid.onpointerdown = (event) => {
    const found = at(event);
    if (!found) return;
    const [query, key] = found;
    preview(map, state, choose, query);
    announce(query, key);
  };
  handle(grid, "pointerleave", () => preview(map, state, choose, null));
  // The weight of a query on a key as an address names it, a mean of heads as the box of them; null for a rollout.
  const placeOf = (query, key) => {
    const step = map.facts.steps?.[state.layer];
    if (!step || state.view === "rollout") return null;
    const head = state.view === "mean" ? `0-${map.heads - 1}` : state.view;
    return `${step}:0.${map.heads > 1 ? head : 0}.${query}.${key}`;
  };
  const follow = (query, key) => {
    const place = placeOf(query, key);
    if (place) dispatchEvent(new CustomEvent("cell", { detail: { place, fresh: true } }));
  };
  grid.onclick = (event) => {
    const found = at(event);
    if (!found) return;
    const frees = state.pinned && found[0] === state.query;
    press(map, state, choose, found[0]);
    if (!frees) follow(...found);
  };
  let key = 0; // the one that arrow keys stand on
  grid.onkeydown = (event) => {
    const [down, right] = ARROWS[event.key] ?? [0, 0];
    if (event.key === "Enter") {
      event.preventDefault();
      follow(state.query, key);
    }
    if (!down && !right) return;
    event.preventDefault();
    key = within(key + right, map.keys);
    if (down) choose({ query: within(state.query + down, map.queries), pinned: true }, true, event.repeat);
    announce(state.query, key);
  };

  function draw(now, open) {
    cells = now;
    const key = [state.layer, state.view, state.scale].join();
    if (key !== painted) {
      const closed = (cell) => isClosed(map, cells, state.layer, ...cellOf(cell, map.keys));
      most = scaleEnd(cells, (cell) => !closed(cell), state.scale);
      beyond = most < maximum(cells);
      paint(canvas, map, cells, map.keys, most, state.scale, closed);
      painted = key;
    }
    drawBar(find(".tokens .bar"), ramp(map.colours), most, state.scale, 1 / open.length, beyond);
    find(".band").classList.toggle("pinned", state.pinned);
    find(".band").style.top = `${(100 * state.query) / map.queries}%`;
    find(".band").style.height = `${100 / map.queries}%`;
    const [row, column] = state.view === "rollout" ? ["after the last block", "input"] : ["query", "key"];
    find(".axis.of-rows").textContent = `${row} (row)`;
    find(".axis.of-columns").textContent = `${column} (column)`;
    find(".cell").textContent = `${row[0].toUpperCase()}${row.slice(1)} ${arrow()} ${column}: point at a cell${placeOf(0, 0) ? ", or click it to follow its number" : ""}.`;
    const size = `Attention matrix, ${map.queries} queries by ${map.keys} keys`;
    const mask = map.masks.length ? ` Cells closed by ${maskName(map)} are grey.` : "";
    grid.setAttribute("aria-label", `${size}.${mask} Query: ${queryName(map, state)}. Arrow keys move it${placeOf(0, 0) ? ", Enter follows a number" : ""}.`);
  }
  return { draw };
}
