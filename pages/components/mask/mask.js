// A mask and one of its rows, drawn in the browser: another query or head asks no server, as long as its rows are here.

const LETTER = 8; // pixels of a letter of a label, about
const FEWEST = 5; // names below a row
const PLACE = ["query", "head"]; // what the address says of it
const MOVES = { ArrowUp: -1, ArrowLeft: -1, PageUp: -1, ArrowDown: 1, ArrowRight: 1, PageDown: 1 };

function opened(data) {
  const { facts, body } = unpack(data);
  const map = Object.assign(unpack(body), { facts });
  const [head, heads, first, count] = map.sent;
  const { keys } = map;
  map.has = (state) => state.head >= head && state.head < head + heads && state.query >= first && state.query < first + count;
  map.row = (state) => {
    const from = ((state.head - head) * count + state.query - first) * keys;
    const [before, weights, own] = [map.before, map.weights, map.own].map((cells) => cells?.subarray(from, from + keys));
    return { before, weights, open: own ?? map.open.subarray(state.query * keys, (state.query + 1) * keys) };
  };
  return map;
}

const made = (tag, text = "", style = {}) => {
  const node = element(tag, "", text);
  Object.assign(node.style, style);
  return node;
};

const [ON, OFF] = [[37, 137, 199, 255], [122, 132, 148, 90]];

function paint(canvas, rows, columns, open) {
  Object.assign(canvas, { width: columns, height: rows });
  paintCells(canvas, columns, open, (cell) => (cell ? ON : OFF));
}

// Bars from zero: those of open keys in one colour, those of closed ones in another.
function bars(svg, values, classes, low, high) {
  const gap = values.length > 200 ? 0 : 0.1;
  const y = (value) => (100 * (high - value)) / (high - low);
  const paths = classes.map(() => "");
  values.forEach((value, key) => {
    const which = classes.findIndex(([, holds]) => holds(key));
    paths[which] += `M${key + gap / 2} ${y(0)}V${y(value)}h${1 - gap}V${y(0)}z`;
  });
  svg.setAttribute("viewBox", `0 0 ${values.length} 100`);
  svg.innerHTML =
    paths.map((path, i) => `<path class="${classes[i][0]}" d="${path}"/>`).join("") +
    `<path class="zero" d="M0 ${y(0)}h${values.length}"/>`;
}

function scale(box, low, high, written = (value) => decimals(value, 3)) {
  const ends = [...new Set([high, 0, low])].filter((end, i) => end !== 0 || (i === 1 && low <= 0 && high >= 0) || high === 0 || low === 0);
  const apart = (end) => end === 0 || Math.abs(end) / (high - low) > 0.12;
  box.replaceChildren(...ends.filter(apart).map((end) => made("span", written(end), { top: `${(100 * (high - end)) / (high - low)}%` })));
}

export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  const find = (selector) => parentElement.querySelector(selector);
  const map = opened(data);
  const { queries, keys, heads, names, key_names: keyNames } = map;
  const me = keepPlace({ facts: map.facts });
  const known = (text, size, first) => (/^\d+$/.test(text ?? "") && Number(text) < size ? Number(text) : first);
  const standing = ({ query, head }) => ({ query: known(query, queries, map.start), head: known(head, heads, 0) });
  const state = standing(placeInAddress(PLACE));
  equations(find(".equations"), map.facts.equations, (step) => setTriggerValue("step", step));
  const every = map.open.every(Boolean) && map.open.length > 1;

  const bare = every && !map.always; // a picture of it would be one blue square
  find(".mask").classList.toggle("bare", bare);
  for (const part of [".plot", ".cell", ".about"]) find(part).hidden = bare;
  find(".head-box").hidden = heads < 2;
  find(".head-box label").textContent = `Head of block ${map.layer + 1}`;

  const [query, head] = [find("#query"), find("#head")];
  query.max = queries - 1;
  head.max = heads - 1;
  handle(query, "input", () => choose({ query: Number(query.value) }, true));
  handle(head, "input", () => choose({ head: Number(head.value) }, true));

  const cells = find(".cells");
  if (!bare) {
    paint(cells.querySelector("canvas"), queries, keys, map.open);
    cells.style.aspectRatio = `${keys} / ${queries}`;
    cells.setAttribute("aria-label", map.alt);
    find(".edges").replaceChildren(
      ...[["row", "top", queries, map.segments], ["column", "left", keys, map.key_segments]].flatMap(([name, side, size, segments]) =>
        segments.slice(1).map(([from]) => {
          const line = made("div", "", { [side]: `${(100 * from) / size}%` });
          line.className = name;
          return line;
        }),
      ),
    );
    const middles = (size, side, segments) =>
      (segments.length ? segments : [[0, 1, "1", ""], [size - 1, size, String(size), ""]])
        .filter(([from]) => from < size)
        .map(([from, to, name, unit]) => made("span", unit ? `${name}\n${unit}` : name, { [side]: `${(50 * (from + Math.min(to, size))) / size}%` }));
    find(".ticks.rows").replaceChildren(...middles(queries, "top", map.segments));
    find(".ticks.columns").replaceChildren(...middles(keys, "left", map.key_segments));
    find(".about").textContent =
      "It is read from the scores of this run, cell by cell: a cell is filled where the token of its row may attend to the token of its column. The query’s row has " +
      `an orange frame${map.segments.length > 1 ? "; grey lines separate the segments" : ""}.`;
    const at = (event) => nearestCell(event, cells, queries, keys);
    find(".cell").textContent = "Point at a cell to read it; click it to see its row.";
    cells.onpointermove = cells.onpointerdown = (event) => {
      const [row, key] = at(event);
      find(".cell").textContent = `${names[row]} ${map.open[row * keys + key] ? "may attend to" : "may not attend to"} ${keyNames[key]}`;
    };
    handle(cells, "click", (event) => choose({ query: at(event)[0] }));
    handle(cells, "keydown", move);
  }

  function move(event) {
    if (!MOVES[event.key]) return;
    event.preventDefault();
    choose({ query: within(state.query + MOVES[event.key], queries) }, event.repeat);
  }

  function choose(change, held = false) {
    Object.assign(state, change);
    me.place.moved({ query: String(state.query), head: heads > 1 ? String(state.head) : null }, held);
    draw();
  }

  // As many keys as there is room for have their name below the row, at even steps; where few names have room, their numbers.
  function label() {
    const box = find(".ticks.keys");
    const words = keyNames.slice(0, keys).some((name) => name.includes(": "));
    const stepOf = (text) => {
      const longest = Math.max(...keyNames.slice(0, keys).map((_, key) => text(key).length));
      const room = Math.max(1, Math.floor(box.clientWidth / (LETTER * (2 + longest))));
      return [1, 2, 3, 4, 5, 10, 15, 20, 25, 50, 100, 200].find((one) => keys / one <= room) ?? keys;
    };
    const [name, number] = [(key) => keyNames[key], (key) => String(key + 1)];
    const text = words && keys / stepOf(name) >= Math.min(FEWEST, keys) ? name : number;
    const step = stepOf(text);
    box.replaceChildren(
      ...Array.from({ length: Math.ceil(keys / step) }, (_, i) => made("span", text(i * step), { left: `${(100 * (i * step + 0.5)) / keys}%` })),
    );
  }
  // The labels of rows and columns have the room that the longest needs, in the type of now.
  function fit() {
    const longest = (ticks, side) => Math.max(0, ...[...find(ticks).children].map((tick) => tick[side]));
    find(".ticks.rows").style.minWidth = `${longest(".ticks.rows", "offsetWidth")}px`;
    find(".ticks.columns").style.minHeight = `${longest(".ticks.columns", "offsetHeight")}px`;
  }
  const watcher = new ResizeObserver(() => {
    fit();
    label();
    if (map.has(state)) draw();
  });
  watcher.observe(find(".ticks.keys"));

  function list(row) {
    find("tbody").replaceChildren(
      ...Array.from({ length: keys }, (_, key) => {
        const line = made("tr");
        const name = made("th", keyNames[key]);
        name.scope = "row";
        line.append(name, ...[decimals(row.before[key], 3), row.open[key] ? map.mask.open : map.mask.closed, percent(row.weights[key])].map((text) => made("td", text)));
        return line;
      }),
    );
  }
  find("details").ontoggle = () => {
    if (map.has(state) && find("details").open) list(map.row(state));
  };

  function draw() {
    query.value = state.query;
    head.value = state.head;
    find(".query-box output").textContent = names[state.query];
    find(".head-box output").textContent = state.head + 1;
    head.setAttribute("aria-valuetext", String(state.head + 1));
    query.setAttribute("aria-valuetext", names[state.query]);
    find("h3").textContent = `The row of ${names[state.query]}`;
    find(".band").style.top = `${(100 * state.query) / queries}%`;
    find(".band").style.height = `${100 / queries}%`;
    const here = map.has(state);
    find(".waiting").hidden = here;
    if (!here) {
      find(".waiting").textContent = "Fetching this row …";
      setStateValue("wanted", [state.head, state.query]);
      return;
    }
    const row = map.row(state);
    const count = row.open.reduce((sum, cell) => sum + cell, 0);
    const all = count === keys;
    find(".before-title").textContent = all ? "scores" : "scores before the mask";
    find(".mask-title").textContent = all ? "every key is open to this query" : map.mask.title;
    find(".weights-title").textContent = all ? "attention weights" : "attention weights after it";
    const [low, high] = [Math.min(0, ...row.before), Math.max(0, ...row.before)];
    const span = high > low ? [low, high] : [0, 1];
    bars(find(".before svg"), row.before, [["open", (key) => row.open[key]], ["shut", () => true]], ...span);
    scale(find(".before .scale"), ...span);
    paint(find(".strip canvas"), 1, keys, row.open);
    const top = row.weights.indexOf(Math.max(...row.weights));
    const name = find(".weights .top");
    name.textContent = keyNames[top];
    const room = Math.min(0.5, name.offsetHeight / find(".weights").offsetHeight || 0); // for the name above its bar
    const upto = (row.weights[top] || 1) / (1 - room);
    bars(find(".weights svg"), row.weights, [["weight", () => true]], 0, upto);
    scale(find(".weights .scale"), 0, upto, (end) => (end ? "" : "0"));
    find(".weights .scale").append(made("span", percent(row.weights[top]), { top: `${100 * room}%` }));
    const share = (top + 0.5) / keys;
    name.style.left = `calc(var(--lead) + (100% - var(--lead)) * ${share})`;
    name.style.transform = `translateX(${share < 1 / 3 ? 0 : share < 2 / 3 ? -50 : -100}%)`;
    find(".status").textContent =
      `${count} of ${keys} keys are open to this query. The highest weight is that of ${keyNames[top]}: ${percent(row.weights[top])}. ` +
      map.kept[state.head];
    find(".key").textContent = "Point at a key to read it.";
    find(".row-of").onpointermove = (event) => {
      const box = find(".strip canvas").getBoundingClientRect();
      const key = Math.floor(((event.clientX - box.left) / box.width) * keys);
      if (key < 0 || key >= keys) return;
      find(".key").textContent = `${keyNames[key]}: score ${decimals(row.before[key], 3)}, ${row.open[key] ? "open" : "closed"}, weight ${percent(row.weights[key])}`;
    };
    if (find("details").open) list(row);
  }
  draw();
  const back = (place) => {
    Object.assign(state, standing(place));
    draw();
  };
  const end = listen(parentElement, me, PLACE, back, presented(find(".row-of"), move));
  return () => {
    end();
    watcher.disconnect();
  };
}
