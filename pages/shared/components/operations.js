// A table that filters, sorts and folds by module. Rows come from Python as plain data; all text is escaped here.

const escaped = (text) =>
  String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
const shown = (value) =>
  Array.isArray(value) ? value[1] : typeof value === "number" ? value.toLocaleString("en-US") : value;
const sortable = (value) => (Array.isArray(value) ? value[0] : value);

/** Modules as a tree: {name, key, modules, rows, sums, count}; a module that holds one module alone is one with it. */
function tree(rows, columns) {
  const top = { name: "", key: "", modules: new Map(), rows: [] };
  for (const row of rows) {
    let node = top;
    for (const name of row.path) {
      const key = `${node.key}/${name}`;
      if (!node.modules.has(name)) node.modules.set(name, { name, key, modules: new Map(), rows: [] });
      node = node.modules.get(name);
    }
    node.rows.push(row);
  }
  return summed(top, columns);
}

function summed(node, columns) {
  let children = [...node.modules.values()].map((child) => summed(child, columns));
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
      '<span class="said" role="status"></span></div>' +
      '<div class="scroll" tabindex="0" role="region" aria-label="Operations"><table></table></div></div>';
    box.state = { level: "", open: new Set(), words: [], fold: true, sort: null };
  }
  const state = box.state;
  const { columns, rows } = data;
  const [search, fold] = box.querySelectorAll("input");
  const table = box.querySelector("table");
  const texts = rows.map((row) =>
    `${row.number} ${row.path.join(".")} ${row.cells.map(shown).join(" ")}`.toLowerCase(),
  );
  if (state.level !== data.level) {
    Object.assign(state, { level: data.level, open: new Set(), sort: null, scrolled: "" });
  }
  if (data.chosen && state.scrolled !== data.chosen) {
    const row = rows.find((one) => one.id === data.chosen);
    row?.path.forEach((_, i) => state.open.add("/" + row.path.slice(0, i + 1).join("/")));
  }

  const numeric = (i) => (columns[i].kind === "text" ? "" : "number");
  const label = (column) =>
    `<th class="${column.place ? numeric(column.place) : "name"}" scope="col" aria-sort="${
      state.sort?.column === column.place ? (state.sort.down ? "descending" : "ascending") : "none"
    }"><button type="button" data-key="sort ${column.place}" data-sort="${column.place}">${escaped(column.name)}</button></th>`;
  const cells = (values) =>
    values.slice(1).map((value, i) => `<td class="${numeric(i + 1)}${value === 0 ? " zero" : ""}">${escaped(shown(value))}</td>`).join("");

  function line({ module, row }, depth, lines, wide) {
    if (row) {
      const mark = row.id === data.chosen ? "row chosen" : "row";
      const path = wide && row.path.length ? ` title="${escaped(row.path.join("."))}"` : "";
      lines.push(
        `<tr class="${mark}"><th class="name" scope="row" style="--depth:${depth};font-weight:400"${path}>` +
          `<button type="button" data-key="${escaped(row.number)}" data-row="${escaped(row.id)}"` +
          `${row.id === data.chosen ? ' aria-current="true"' : ""}>` +
          `<span class="index">${row.number}</span>${escaped(row.cells[0])}</button></th>${cells(row.cells)}</tr>`,
      );
      return;
    }
    const open = state.words.length > 0 || state.open.has(module.key);
    const sums = [module.name, ...module.sums.slice(1)];
    sums[1] = `${module.count} ${module.count === 1 ? data.level.slice(0, -1) : data.level}`;
    lines.push(
      `<tr class="module"><th class="name" scope="row" style="--depth:${depth}">` +
        `<button type="button" data-key="${escaped(module.key)}" data-module="${escaped(module.key)}" ` +
        `aria-expanded="${open}">${escaped(module.name)}</button></th>${cells(sums)}</tr>`,
    );
    if (open) ordered(module, state.sort).forEach((item) => line(item, depth + 1, lines));
  }

  function draw() {
    const kept = rows.filter((_, i) => state.words.every((word) => texts[i].includes(word)));
    const lines = [];
    if (state.fold) ordered(tree(kept, columns), state.sort).forEach((item) => line(item, 0, lines));
    else kept.map((row) => ({ row, cells: row.cells, number: row.number }))
      .sort((a, b) => compare(a, b, state.sort))
      .forEach((item) => line(item, 0, lines, true));
    const head = columns.map((column, place) => label({ ...column, place })).join("");
    const none = `<tr><td class="none" colspan="${columns.length}">Nothing here has all of these words.</td></tr>`;
    const focused = box.getRootNode().activeElement?.dataset?.key;
    table.innerHTML = `<thead><tr>${head}</tr></thead><tbody>${lines.join("") || none}</tbody>`;
    box.querySelector(".said").textContent =
      kept.length === rows.length ? `${rows.length} ${data.level}` : `${kept.length} of ${rows.length} ${data.level}`;
    if (focused) table.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  function every(node, keys = []) {
    node.children.forEach((child) => every(child, keys).push(child.key));
    return keys;
  }

  search.oninput = () => {
    state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    draw();
  };
  fold.onchange = () => {
    state.fold = fold.checked;
    draw();
  };
  box.onclick = ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    const { row, module, sort, all } = button.dataset;
    if (row !== undefined) {
      state.scrolled = row;
      setTriggerValue("row", row);
    } else if (module !== undefined) {
      state.open.has(module) ? state.open.delete(module) : state.open.add(module);
      draw();
    } else if (sort !== undefined) {
      const column = Number(sort);
      const down = columns[column].kind !== "text"; // the largest first
      if (state.sort?.column !== column) state.sort = { column, down };
      else state.sort = state.sort.down === down ? { column, down: !down } : null;
      draw();
    } else if (all !== undefined) {
      state.open = new Set(all ? every(tree(rows, columns)) : []);
      draw();
    }
  };
  box.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const now = event.target.closest("tbody button");
    if (!step || !now) return;
    event.preventDefault();
    const buttons = [...table.querySelectorAll("tbody button")];
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
