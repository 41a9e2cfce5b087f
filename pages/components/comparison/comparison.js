// Two runs, step by step: a column for each pair of steps, as tall as they differ, and both sides of the chosen one.

const PLACE = ["step"]; // what the address says of it
const LEAST = -8; // the power of ten at which a column begins
const TICKS = { 0: "100 %", "-2": "1 %", "-4": "0.01 %", "-6": "10⁻⁶", "-8": "10⁻⁸" };
const MARKED = /^color:\s*(#d8486b|rgb\(216,\s*72,\s*107\))/;
const NAMES = ["Left", "Right", "Right − left"];

/** How the verdict is coloured: by the values alone; the same ones in another order are no error. */
function stateOf({ relation, differs, alone }) {
  if (relation === "permuted") return "permuted";
  if (differs) return "differs";
  return ["identical", "rounding"].includes(relation) && !alone ? "equal" : "unknown";
}

/** How tall a column is, 0 to 1: the share of the largest value on a scale of powers of ten. */
function height({ relation, share }) {
  if (share === null) return relation === "shapes" || relation === "permuted" ? 1 : 0;
  return share > 0 ? Math.min(1, Math.max(0.04, (Math.log10(share) - LEAST) / -LEAST)) : 0;
}

function begin(root) {
  const find = (selector) => root.querySelector(selector);
  const me = keepPlace({ find });
  me.go = (at, held = false) => {
    if (at < 0 || at >= me.rows.length || at === me.at) return;
    me.at = at;
    show(me);
    me.place.moved({ step: me.rows[at].id }, held);
    find(".live").textContent = `Step ${at + 1} of ${me.rows.length}: ${me.rows[at].title}. ${me.rows[at].differences[0]}`;
  };
  handle(find("input"), "input", ({ target }) => me.go(Number(target.value), true));
  handle(find(".first"), "click", () => me.go(me.first));
  handle(find(".previous"), "click", () => me.go(me.at - 1));
  handle(find(".next"), "click", () => me.go(me.at + 1));
  const fit = (changes) => {
    for (const { target } of changes) fitLine(target);
  };
  const watcher = new ResizeObserver(fit);
  for (const side of root.querySelectorAll(".equation")) watcher.observe(side);
  find(".columns").onclick = ({ target }) => {
    const column = target.closest("[data-at]");
    if (column) me.go(Number(column.dataset.at));
  };
  return me;
}

/** The scale beside the columns: shares of the largest value, by their powers of ten. */
function drawScale(box) {
  const ticks = Object.entries(TICKS).map(([power, text]) => {
    const tick = element("span", "", text);
    tick.style.top = `${(100 * power) / LEAST}%`;
    return tick;
  });
  box.replaceChildren(...ticks);
}

function drawColumns({ find, rows, first, summary }) {
  const columns = rows.map((row, at) => {
    const column = element("span", "column", element("i"));
    column.dataset.at = at;
    column.dataset.relation = row.alone ? "alone" : row.relation;
    column.title = `${row.title}${row.block ? `, block ${row.block}` : ""}: ${row.differences[0]}`;
    column.style.setProperty("--tall", height(row));
    column.classList.toggle("differs", row.differs);
    column.classList.toggle("begins", at === first);
    return column;
  });
  drawScale(find(".scale"));
  const box = find(".columns");
  box.replaceChildren(...columns);
  box.style.setProperty("--count", rows.length);
  box.setAttribute("aria-label", summary);
  find("input").max = rows.length - 1;
}

function drawSide(section, side, absent) {
  section.classList.toggle("absent", absent);
  const name = section.className.includes("left") ? "Left" : "Right";
  section.querySelector("h3").textContent = absent && side ? `${name}: the step whose value it changes` : name;
  const [equation, sizes, id] = [".equation", ".sizes", ".id"].map((name) => section.querySelector(name));
  if (!side) {
    equation.replaceChildren("This run has no such step.");
    sizes.replaceChildren();
    id.textContent = "";
    return;
  }
  equation.replaceChildren(side.latex ? maths(side.latex, true) : "The equation is too long to draw here.");
  for (const part of equation.querySelectorAll("[style]")) if (MARKED.test(part.getAttribute("style"))) part.classList.add("marked");
  fitLine(equation);
  sizes.replaceChildren(maths(side.inside));
  id.textContent = side.id;
}

function drawPanels({ find, maps, colours }, row) {
  const map = row.map === null || row.map === undefined ? undefined : maps[row.map];
  find(".attention").hidden = !map;
  if (!map) return;
  find(".attention h3").textContent = `Attention of block ${map.block}, the mean over heads${map.caption && `: ${map.caption}`}`;
  find(".maps").replaceChildren(
    ...map.panels.map((panel, number) => {
      const canvas = element("canvas");
      const { cells } = panel;
      paintMatrix(canvas, cells.shape, cells, ...panel.ends, colours[panel.scale]);
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${NAMES[number]}: ${cells.shape.join(" × ")}, query by key`);
      canvas.style.aspectRatio = `${cells.shape[1]} / ${cells.shape[0]}`;
      const stripe = element("span", "stripe");
      stripe.style.background = gradient(colours[panel.scale], "right");
      const [low, high] = panel.ends.map((end) => numeral(end, 2));
      const figure = element("figure", "", element("figcaption", "", NAMES[number]), canvas, element("div", "ends", low, stripe, high));
      figure.dataset.figure = `${NAMES[number]}: attention of block ${map.block}`;
      return figure;
    }),
  );
}

function show(me) {
  const { find, rows, at, first } = me;
  const row = rows[at];
  find("input").value = at;
  find("input").setAttribute("aria-valuetext", `${row.title}: ${row.differences[0]}`);
  find(".columns .chosen")?.classList.remove("chosen");
  find(".columns").children[at].classList.add("chosen");
  find(".first").hidden = first < 0;
  find(".first").disabled = at === first;
  find(".previous").disabled = at === 0;
  find(".next").disabled = at === rows.length - 1;
  find(".count").textContent = `${at + 1} of ${rows.length}`;
  find(".stage").textContent = row.block ? `${row.stage}, block ${row.block}` : row.stage;
  find(".stage").style.setProperty("--stage", row.colour);
  find(".title").textContent = at === first ? `${row.title}: the first difference` : row.title;
  const verdict = find(".verdict");
  verdict.textContent = row.differences[0];
  verdict.dataset.state = stateOf(row);
  find(".differences").replaceChildren(...row.differences.slice(1).filter(Boolean).map((sentence) => element("li", "", sentence)));
  [".left", ".right"].forEach((name, number) => drawSide(find(name), row.sides[number], row.alone !== "" && row.alone !== name.slice(1)));
  drawPanels(me, row);
}

export default function ({ data, parentElement }) {
  const me = (parentElement.comparing ??= begin(parentElement));
  const { facts, body } = unpack(data);
  const { rows, maps, first, colours } = unpack(body);
  const other = me.key !== facts.key;
  Object.assign(me, { facts, colours, rows, maps, first, key: facts.key, summary: facts.summary, path: location.pathname });
  const opened = rows.findIndex((row) => row.id === placeInAddress(PLACE).step);
  if (other) me.at = Math.max(0, opened < 0 ? first : opened);
  me.find("figcaption").textContent = facts.scale;
  drawColumns(me);
  show(me);
  if (!plugin) loadMaths(facts.katex).then(() => show(me));
  const back = ({ step }) => {
    const at = me.rows.findIndex((row) => row.id === step);
    me.at = at < 0 ? Math.max(0, me.first) : at;
    show(me);
  };
  return listen(me, me, PLACE, back);
}
