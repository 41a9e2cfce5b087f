// One number, followed: what it was computed from, what reads it, and the way back. Pictures send the event "cell" with
// {place}, "point" with {place}; they hear "cell shown" with {step, index, place}, and "pointed"
// with {place, exact}; one that comes later sends "picture of cells" to hear what is shown.

const PLACE = ["cell"];
const REST = 160; // milliseconds that the pointer rests before its cell is asked for

/** A cell as an address names it: its tensor, and its index from 0; a box has ranges. */
const placeOf = (id, index) => `${id}:${index.join(".")}`;
const isPlace = (text) => /^.+:(\d+(-\d+)?(\.\d+(-\d+)?)*)?$/s.test(text ?? "");

function operandPicture(picture, colours, go) {
  const canvas = element("canvas");
  const { cells, scale } = picture;
  const [rows, columns] = cells.shape;
  paintMatrix(canvas, cells.shape, cells, 0, 255, colours[scale]);
  const lit = element("span", "lit");
  const [top, bottom, left, right] = picture.lit;
  layOver(lit, [left, top, right - left, bottom - top]);
  const frame = element("span", "frame", canvas, lit);
  frame.style.setProperty("--ratio", Math.min(4, Math.max(0.5, columns / rows)));
  const read = picture.count === 1 ? "1 number" : `${picture.count.toLocaleString("en-US")} numbers`;
  const name = element("figcaption", "", maths(picture.symbol), ` ${picture.lead ? `${picture.lead} ` : ""}${picture.full.join(" × ")}: ${read}`);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${picture.title}, ${picture.full.join(" by ")}, with the ${read} that were read in a frame`);
  return element("figure", "", frame, name);
}

function start(root) {
  const find = (selector) => root.querySelector(selector);
  const me = keepPlace({ find, trail: [], facts: {} });
  const panel = find(".follow");

  me.ask = (more) => me.set("wanted", { run: me.facts.run, ...more });

  /** What the address says of a cell, on Trace with the step that it belongs to. */
  me.addressed = (place) => {
    const [, id, index] = /^(.+):([\d.-]*)$/s.exec(place);
    if (!me.path.endsWith("/trace") || /^(input|parameter|constant) /.test(id)) return { cell: place };
    const lead = index.split(".").slice(0, -2).map((at) => at.split("-")[0]);
    return { step: id, index: lead.some(Number) ? lead.join(".") : null, cell: place };
  };

  /** Opens a cell: at the end of the way, or where the way has it already. */
  me.open = (place, spoken = true) => {
    const before = me.trail.findIndex((step) => step.place === place);
    if (before >= 0) me.trail.length = before + 1;
    else me.trail.push({ place, name: null });
    me.cell = place;
    me.spoken = spoken;
    if (spoken) me.place.moved(me.addressed(place)); // now: another run of the page takes it from there
    if (!panel.matches(":popover-open")) {
      me.from = document.activeElement;
      panel.showPopover();
      document.body.toggleAttribute("data-follow", true); // the page makes room beside it
    }
    find(".waiting").hidden = false;
    find(".waiting").textContent = "Following this number …";
    me.ask({ cell: place });
  };

  me.close = (spoken = true) => {
    me.cell = me.shown = null;
    me.trail = [];
    if (panel.matches(":popover-open")) panel.hidePopover();
    document.body.removeAttribute("data-follow");
    dispatchEvent(new CustomEvent("cell shown", { detail: { step: null, place: null } }));
    if (spoken && placeInAddress(PLACE).cell !== null) me.place.moved({ cell: null });
    if (panel.contains(document.activeElement)) me.from?.focus?.();
  };

  handle(find(".close"), "click", () => me.close());
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      me.close();
    }
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...panel.querySelectorAll(".terms button")];
    const at = buttons.indexOf(event.target);
    if (by && at >= 0) {
      event.preventDefault();
      buttons[at + by]?.focus();
    }
    if (event.key === "Backspace" && me.trail.length > 1) {
      event.preventDefault();
      me.open(me.trail.at(-2).place);
    }
  });
  return me;
}

function drawTrail(me) {
  me.find(".trail ol").replaceChildren(
    ...me.trail.map(({ place, name, symbol }, at) => {
      const last = at === me.trail.length - 1;
      const parts = ["", symbol ? maths(symbol) : "", name ?? "…"];
      const step = last ? element("span", ...parts) : makeButton(() => me.open(place), ...parts);
      if (last) step.setAttribute("aria-current", "step");
      return element("li", "", step);
    }),
  );
}

function termRow(me, term) {
  const name = element("span", "name", term.symbol ? maths(term.symbol) : "", element("span", "index", term.place));
  const number = element("span", "number", term.value);
  const parts = [name, number];
  if (term.by) {
    const by = element("span", "by", "× ", maths(term.by.symbol), element("span", "index", term.by.place), ` ${term.by.value}`);
    parts.push(by);
  }
  if (term.share !== undefined) {
    const bar = element("i", `share${term.negative ? " negative" : ""}`);
    bar.style.setProperty("--part", term.part);
    parts.push(element("span", "adds", term.share === "" ? "" : `${term.negative ? "" : "+"}${term.share}`), bar);
  }
  const open = () => me.open(placeOf(term.id, term.index));
  const button = term.ends ? element("div", "term", ...parts) : makeButton(open, "term", ...parts);
  if (term.where) button.title = term.where;
  const row = element("li", "", button);
  if (!term.by) return row;
  const other = makeButton(() => me.open(placeOf(term.by.id, term.by.index)), "other", "→ ", maths(term.by.symbol));
  other.title = `Go on to the other factor${term.by.where ? `: ${term.by.where}` : ""}`;
  other.setAttribute("aria-label", `The other factor, ${term.by.place}, ${term.by.value}`);
  row.append(other);
  return row;
}

function userRow(me, user) {
  const says = [element("span", "name", maths(user.symbol)), element("span", "text", `${user.title}. ${user.text}`)];
  return element("li", "", makeButton(() => me.open(placeOf(user.id, user.index)), "term", ...says));
}

function draw(me, answer) {
  const { find } = me;
  find(".waiting").hidden = true;
  find(".problem").hidden = !answer.problem;
  find(".problem").textContent = answer.problem ?? "";
  find(".cell").hidden = Boolean(answer.problem);
  const step = me.trail.at(-1);
  if (step && answer.problem) step.name = "?";
  drawTrail(me);
  if (answer.problem) return;
  Object.assign(step, { name: answer.place, symbol: answer.symbol });
  drawTrail(me);
  find("h2").replaceChildren(answer.title, " ", maths(answer.symbol), element("span", "index", answer.place));
  find(".where").textContent = answer.where;
  find(".value").textContent = answer.value;
  for (const part of ["mean", "exact", "note", "ends"]) {
    find(`.${part}`).textContent = answer[part] ?? "";
    find(`.${part}`).hidden = !answer[part];
  }
  find(".general").replaceChildren(...(answer.latex ? [maths(answer.latex)] : []));
  find(".numeric").replaceChildren(...(answer.numeric ? [maths(answer.numeric, true)] : []));
  for (const line of [".general", ".numeric"]) {
    find(line).hidden = !find(line).childNodes.length;
    fitLine(find(line));
  }
  find(".operands").replaceChildren(...answer.operands.map((picture) => operandPicture(picture, me.colours)));
  find(".back .terms").replaceChildren(...answer.rows.map((term) => termRow(me, term)));
  find(".back").hidden = !answer.rows.length;
  const { more } = answer;
  find(".more").textContent = more ? `${more.count.toLocaleString("en-US")} more${more.share === "" ? "" : ` add up to ${more.share}`}.` : "";
  find(".beside .terms").replaceChildren(...answer.beside.map((term) => termRow(me, term)));
  find(".beside").hidden = !answer.beside.length;
  find(".users").replaceChildren(...answer.users.map((user) => userRow(me, user)));
  find(".forward").hidden = !answer.users.length;
  find(".code code").textContent = answer.code;
  find(".live").textContent = `${answer.title} ${answer.place}: ${answer.value}`;
  const { step: id, index } = answer;
  me.shown = { step: id || null, index, place: me.cell };
  dispatchEvent(new CustomEvent("cell shown", { detail: me.shown }));
  if (me.spoken) find("h2").focus({ preventScroll: true }); // where a link opened it, the page keeps the focus
  find(".follow").scrollTop = 0;
}

export default function ({ data, parentElement, setStateValue }) {
  const me = (parentElement.number ??= start(parentElement));
  const { facts, colours } = unpack(data);
  const other = me.facts.run !== facts.run;
  Object.assign(me, { facts, colours, set: setStateValue, path: location.pathname });
  const drawn = () => {
    if (facts.answer && facts.cell === me.cell) draw(me, facts.answer);
    if (facts.point) dispatchEvent(new CustomEvent("pointed", { detail: { place: facts.point, exact: facts.exact } }));
  };
  const { cell } = placeInAddress(PLACE);
  document.body.toggleAttribute("data-follow", Boolean(me.cell));
  if (other) {
    if (isPlace(cell)) {
      me.trail = me.trail.filter(({ place }) => place === cell);
      me.open(cell, false);
    } else if (me.cell) me.close(false);
  }
  // After the cell of the address is open: a panel that is mounted anew may have its answer already, and gets no second.
  if (plugin) drawn();
  else loadMaths(facts.katex).then(drawn);

  const asked = ({ detail }) => {
    if (detail.fresh) me.trail = [];
    me.open(detail.place);
  };
  let timer;
  const pointed = ({ detail }) => {
    clearTimeout(timer);
    if (detail.place) timer = setTimeout(() => me.ask({ point: detail.place, ...(me.cell ? { cell: me.cell } : {}) }), REST);
  };
  const again = () => {
    if (me.shown) dispatchEvent(new CustomEvent("cell shown", { detail: me.shown })); // to a picture that came later
  };
  const back = (place) => {
    if (isPlace(place.cell)) me.open(place.cell, false);
    else if (me.cell) me.close(false);
  };
  const left = () => {
    document.body.removeAttribute("data-follow");
    clearTimeout(timer);
  };
  return listen(me, me, PLACE, back, left, hear(window, { cell: asked, point: pointed, "picture of cells": again }));
}
