// A table that filters, sorts and folds by module. Rows come from Python as plain data; all text is escaped here.

const escaped = (text) =>
  String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
const shown = (value) =>
  Array.isArray(value) ? value[1] : typeof value === "number" ? value.toLocaleString("en-US") : value;
const words = (value) => (Array.isArray(value) ? value.join(" ") : shown(value));
const sortable = (value) => (Array.isArray(value) ? value[0] : value);

/** Modules as a tree: {name, key, modules, rows, sums, count}; a module that holds one module alone is one with it.
 *  A row that holds others is the module itself, its `own`; `all` has those of which only others are to be shown. */
function tree(rows, columns, all = rows) {
  const top = { name: "", key: "", modules: new Map(), rows: [] };
  const inside = (node, name) => {
    const key = `${node.key}/${name}`;
    if (!node.modules.has(name)) node.modules.set(name, { name, key, modules: new Map(), rows: [], own: holders.get(key) });
    return node.modules.get(name);
  };
  const holders = new Map(all.filter((row) => row.holds).map((row) => [place(row), row]));
  for (const row of rows) {
    const node = row.path.reduce(inside, top);
    if (row.holds) inside(node, row.cells[0]);
    else node.rows.push(row);
  }
  return summed(top, columns);
}

/** Where a row that holds others stands in the tree. */
const place = (row) => ["", ...row.path, row.cells[0]].join("/");

function summed(node, columns) {
  let children = [...node.modules.values()].map((child) => summed(child, columns));
  if (node.own) {
    const { own } = node;
    return { name: node.name, key: node.key, children, rows: node.rows, own, sums: own.cells, count: 1, first: own.number };
  }
  if (node.name && children.length === 1 && !node.rows.length) {
    return { ...children[0], name: `${node.name}.${children[0].name}` };
  }
  const parts = [...children.map((child) => child.sums), ...node.rows.map((row) => row.cells)];
  const sums = columns.map((column, i) =>
    column.total ? total(parts.map((cells) => cells[i])) : "",
  );
  const count = node.rows.length + children.reduce((sum, child) => sum + child.count, 0);
  const first = Math.min(...node.rows.map((row) => row.number), ...children.map((child) => child.first));
  return { name: node.name, key: node.key, children, rows: node.rows, sums, count, first };
}

/** The sum of numbers; one that something is not counted in says so. */
function total(values) {
  const sum = values.reduce((all, value) => all + (sortable(value) || 0), 0);
  if (!values.some(Array.isArray)) return sum;
  return [sum, sum ? `${sum.toLocaleString("en-US")}, some not counted` : "not counted"];
}

/** Modules and rows of one module in the order that is asked for; as they ran where none is. */
function ordered(node, sort) {
  const items = [
    ...node.children.map((module) => ({ module, cells: [module.name, ...module.sums.slice(1)], number: module.first })),
    ...node.rows.map((row) => ({ row, cells: row.cells, number: row.number })),
  ];
  return items.sort((a, b) => compare(a, b, sort));
}

function compare(a, b, sort) {
  if (!sort) return a.number - b.number;
  const [x, y] = [sortable(a.cells[sort.column]), sortable(b.cells[sort.column])];
  if (x === y) return a.number - b.number;
  if (x === "" || y === "") return x === "" ? 1 : -1; // what has no value comes last either way
  const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
  return sort.down ? -less : less;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".slot");
  if (!box.state) {
    box.innerHTML =
      '<div class="operations"><div class="bar">' +
      '<label>Filter <input type="search" placeholder="name, module, shape, step"></label>' +
      '<label><input type="checkbox" checked> Fold by module</label>' +
      '<button type="button" data-all="open">Unfold all</button><button type="button" data-all="">Fold all</button>' +
      '<span class="status" role="status"></span></div>' +
      '<div class="scroll" tabindex="0" role="region" aria-label="Operations"><table></table></div></div>';
    box.state = { level: "", open: new Set(), words: [], fold: true, sort: null };
  }
  const me = (box.me = keepPlace({ facts: data.facts }));
  zooming(box, data);
  draws(box, { ...data.tables[data.level], chosen: data.chosen }, setTriggerValue);
  const end = listen(box, me, PLACE, () => box.returns());
  return () => {
    end();
    box.heard.abort();
  };
}

/** The zoom above the table is Streamlit's own; a level that is here already is shown as soon as it is chosen. */
function zooming(box, data) {
  box.heard?.abort();
  box.heard = new AbortController();
  const chosen = ({ target }) => {
    const level = target.closest?.(".st-key-zooms button")?.textContent.trim();
    if (level && level !== data.level && data.tables[level]) box.shows({ ...data.tables[level], chosen: "" });
  };
  document.addEventListener("click", chosen, { capture: true, signal: box.heard.signal });
}

/** Draws a table and answers what is done with it. */
function draws(box, data, setTriggerValue) {
  box.shows = (other) => draws(box, other, setTriggerValue);
  const state = box.state;
  const { columns, rows } = data;
  const [search, fold] = box.querySelectorAll("input");
  const table = box.querySelector("table");
  const texts = rows.map((row) =>
    `${row.number} ${row.path.join(".")} ${row.cells.map(words).join(" ")}`.toLowerCase(),
  );
  const modules = () => every(tree(rows, columns));
  /** Takes what the address says of the table. */
  function stands() {
    const address = placeInAddress(PLACE);
    const open = places(address.open, data.level, modules);
    search.value = address.filter ?? "";
    fold.checked = address.fold !== "off";
    Object.assign(state, {
      level: data.level,
      words: worded(search.value),
      fold: fold.checked,
      sort: sorting(address.sort, data.level, columns.length),
      open: new Set(open ?? data.open),
      scrolled: open || data.open?.length ? data.chosen : "",
    });
  }
  /** Writes what was chosen into the address. */
  const moved = (held = false) =>
    box.me.place.moved(
      {
        filter: search.value.trim() || null,
        fold: state.fold ? null : "off",
        sort: sorted(state.sort, data.level),
        open: placed(state.open, data.open, data.level, modules),
      },
      held,
    );
  if (state.level !== data.level) stands();
  box.returns = () => {
    stands();
    draw();
  };
  if (data.chosen && state.scrolled !== data.chosen) {
    const row = rows.find((one) => one.id === data.chosen);
    row?.path.forEach((_, i) => state.open.add("/" + row.path.slice(0, i + 1).join("/")));
  }

  const numeric = (i) => (columns[i].kind === "error" ? "number" : columns[i].kind);
  const label = (column) =>
    `<th class="${column.place ? numeric(column.place) : "name"}" scope="col" aria-sort="${
      state.sort?.column === column.place ? (state.sort.down ? "descending" : "ascending") : "none"
    }"><button type="button" data-key="sort ${column.place}" data-sort="${column.place}">${escaped(column.name)}</button></th>`;
  const share = (i, value) => {
    const { whole } = columns[i];
    return whole ? ` style="--share:${(100 * (sortable(value) || 0)) / whole}%"` : "";
  };
  const text = (i, value) =>
    columns[i].kind === "shape" && Array.isArray(value)
      ? `<span>${escaped(value[0])}</span><small>${escaped(value[1] === value[0] ? "" : value[1])}</small>`
      : escaped(shown(value));
  const cells = (values) =>
    values
      .map((value, i) => `<td class="${numeric(i)}${value === 0 ? " zero" : ""}"${share(i, value)}>${text(i, value)}</td>`)
      .slice(1)
      .join("");
  const choice = (row) =>
    `<button type="button" data-key="${escaped(row.id)}" data-row="${escaped(row.id)}"` +
    `${row.id === data.chosen ? ' aria-current="true"' : ""}>` +
    `${row.mark === "" ? "" : `<span class="index">${row.mark ?? row.number}</span>`}${escaped(row.cells[0])}</button>`;

  function line({ module, row }, depth, lines, wide) {
    if (row) {
      const mark = row.id === data.chosen ? "row chosen" : "row";
      const path = wide && row.path.length ? ` title="${escaped(row.path.join("."))}"` : "";
      lines.push(
        `<tr class="${mark}${row.mark === "" ? " leaf" : ""}"><th class="name" scope="row" style="--depth:${depth};font-weight:400"${path}>` +
          `${choice(row)}</th>${cells(row.cells)}</tr>`,
      );
      return;
    }
    const open = state.words.length > 0 || state.open.has(module.key);
    const { own } = module;
    if (own) {
      lines.push(
        `<tr class="row holds${own.id === data.chosen ? " chosen" : ""}"><th class="name" scope="row" style="--depth:${depth}">` +
          `<button type="button" class="fold" data-key="fold ${escaped(module.key)}" data-module="${escaped(module.key)}" ` +
          `aria-expanded="${open}" aria-label="${escaped(`Modules in ${module.name}`)}"></button>` +
          `${choice(own)}</th>${cells(own.cells)}</tr>`,
      );
    } else {
      const count = data.noun ? "" : `${module.count} ${module.count === 1 ? data.level.slice(0, -1) : data.level}`;
      lines.push(
        `<tr class="module"><th class="name" scope="row" style="--depth:${depth}">` +
          `<button type="button" data-key="${escaped(module.key)}" data-module="${escaped(module.key)}" ` +
          `aria-expanded="${open}">${escaped(module.name)}</button></th>${cells(["", count, ...module.sums.slice(2)])}</tr>`,
      );
    }
    if (open) ordered(module, state.sort).forEach((item) => line(item, depth + 1, lines));
  }

  function draw() {
    const kept = rows.filter((_, i) => state.words.every((word) => texts[i].includes(word)));
    const lines = [];
    if (state.fold) ordered(tree(kept, columns, rows), state.sort).forEach((item) => line(item, 0, lines));
    else kept.map((row) => ({ row, cells: row.cells, number: row.number }))
      .sort((a, b) => compare(a, b, state.sort))
      .forEach((item) => line(item, 0, lines, true));
    const head = columns.map((column, place) => label({ ...column, place })).join("");
    const none = `<tr><td class="none" colspan="${columns.length}">No row contains all of these words.</td></tr>`;
    const focused = box.getRootNode().activeElement?.dataset?.key;
    table.innerHTML = `<thead><tr>${head}</tr></thead><tbody>${lines.join("") || none}</tbody>`;
    const noun = data.noun ?? data.level;
    const hidden = kept.length < rows.length && data.chosen && !kept.some((row) => row.id === data.chosen);
    box.querySelector(".status").textContent =
      kept.length === rows.length
        ? `${rows.length} ${noun}`
        : `${kept.length} of ${rows.length} ${noun}${hidden ? "; the one below is not among them" : ""}`;
    if (focused) table.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  /** Unfolds a module that is chosen; one that was chosen before folds and unfolds. */
  function unfold(id) {
    const row = rows.find((one) => one.id === id && one.holds);
    if (!row || !state.fold) return;
    const key = place(row);
    if (id === data.chosen) toggle(key);
    else state.open.add(key);
    draw();
  }
  const toggle = (key) => state.open.delete(key) || state.open.add(key);

  function every(node, keys = []) {
    node.children.forEach((child) => every(child, keys).push(child.key));
    return keys;
  }

  search.oninput = () => {
    state.words = worded(search.value);
    draw();
    moved(performance.now() - (box.typed ?? -PAUSE) < PAUSE); // one entry in the history for what is typed in one go
    box.typed = performance.now();
  };
  fold.onchange = () => {
    state.fold = fold.checked;
    draw();
    moved();
  };
  box.onclick = ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    const { row, module, sort, all } = button.dataset;
    if (row !== undefined) {
      state.scrolled = row;
      unfold(row);
      if (row === data.chosen) moved();
      else setTriggerValue("row", [row, placed(state.open, data.open, data.level, modules)]);
      return;
    }
    if (module !== undefined) toggle(module);
    else if (sort !== undefined) {
      const column = Number(sort);
      const down = columns[column].kind !== "text"; // the largest first
      if (state.sort?.column !== column) state.sort = { column, down };
      else state.sort = state.sort.down === down ? { column, down: !down } : null;
    } else if (all !== undefined) state.open = new Set(all ? modules() : []);
    else return;
    draw();
    moved();
  };
  box.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const now = event.target.closest("tbody button")?.closest("tr")?.querySelector("button:last-of-type");
    if (!step || !now) return;
    event.preventDefault();
    const buttons = [...table.querySelectorAll("tbody button:last-of-type")];
    buttons[buttons.indexOf(now) + step]?.focus();
  };
  draw();
  const chosen = table.querySelector(".chosen");
  if (chosen && state.scrolled !== data.chosen) {
    const scroll = box.querySelector(".scroll");
    const hidden = chosen.offsetTop + chosen.offsetHeight > scroll.scrollTop + scroll.clientHeight;
    if (hidden || chosen.offsetTop < scroll.scrollTop) scroll.scrollTop = chosen.offsetTop - scroll.clientHeight / 2;
  }
  state.scrolled = data.chosen;
}
