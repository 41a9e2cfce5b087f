// The stepper: all steps that came are in the browser, so that going through them asks no server for anything.

const MOVES = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };
const PLACE = ["step", "index"]; // what the address says of it

/** Where the leading axes are by the address: `0.3` is the first of one, and number 3 of the next. */
const indexOf = (text) => (/^\d{1,6}(\.\d{1,6})*$/.test(text ?? "") ? text.split(".").map(Number) : []);

function start(root) {
  const find = (selector) => root.querySelector(selector);
  const me = keepPlace({ find, details: new Map(), index: [], heat: layHeat(find(".tensor")), wanted: "" });
  me.fit = () => [...find(".equation").children].forEach(fitLine);
  new ResizeObserver(me.fit).observe(find(".equation"));
  find(".listing").open = !matchMedia("(max-width: 40rem)").matches; // a phone shows the step first

  me.here = () => ({ step: me.heads[me.at].id, index: me.index.some(Boolean) ? Array.from(me.index, (at) => at ?? 0).join(".") : null });
  me.go = (at, held = false) => {
    if (at < 0 || at >= me.heads.length || at === me.at) return;
    me.at = at;
    me.show();
    me.place.moved(me.here(), held);
    find(".live").textContent = `Step ${at + 1} of ${me.heads.length}: ${me.heads[at].title}`;
  };
  me.ask = (at, more = {}) => {
    const asked = { run: me.run, step: me.heads[at].id, index: [...me.index].map((place) => place ?? 0), ...more };
    if (me.wanted === JSON.stringify(asked)) return;
    me.wanted = JSON.stringify(asked);
    me.set("wanted", asked);
  };
  me.show = () => {
    drawStep(me, find, me.ask);
    drawList(me, find, me.go);
    followList(find(".list")); // asks for the layout, once all is drawn
    ahead();
  };

  // What comes next is fetched where it is not there yet, and set while the browser has time.
  const idle = window.requestIdleCallback ?? ((does) => setTimeout(does, 50));
  function ahead() {
    const next = me.at + 1;
    if (next >= me.heads.length || !me.details.has(me.heads[me.at].id)) return;
    if (!me.details.has(me.heads[next].id)) return me.ask(next);
    idle(() => {
      const { id, part } = me.heads[next] ?? {};
      if (!me.details.has(id)) return;
      maths(me.details.get(id).latex, true);
      maths(me.details.get(id).inside);
      if (part === me.heads[me.at].part) return;
      for (const head of me.heads.filter((one) => one.part === part).slice(0, 20)) [head.symbol, head.sizes].forEach((latex) => maths(latex));
    });
  }

  handle(find(".previous"), "click", () => me.go(me.at - 1));
  handle(find(".next"), "click", () => me.go(me.at + 1));
  handle(find(".part"), "change", ({ target }) => me.go(me.heads.findIndex((head) => head.part === Number(target.value))));
  find(".find").oninput = find(".changes").onchange = () => {
    drawList(me, find, me.go);
  };
  find(".list").onkeydown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || taken(event)) return;
    event.preventDefault();
    const buttons = [...find(".list").querySelectorAll("button")];
    const place = buttons.indexOf(event.target.closest("button"));
    buttons[place + by]?.focus();
    buttons[place + by]?.click();
  };
  handle(find(".copy"), "click", ({ target }) => copied(target, me.details.get(me.heads[me.at].id).latex));
  return me;
}

/** Takes what came: a run, its first steps, or more of the same. */
function take(me, facts, header) {
  const other = me.run !== facts.run;
  if (other || me.facts.checking !== facts.checking) me.details.clear();
  for (const [id, detail] of Object.entries(header.details)) me.details.set(id, detail);
  const table = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [closed, open] = header.mask.map(table);
  const mask = new Uint8Array(768);
  for (let at = 0; at < 256; at++) mask.set(at < 128 ? closed : open, 3 * at);
  Object.assign(me, { facts, run: facts.run, prove: facts.prove, heads: header.steps, columns: header.columns, colours: header.colours, mask });
  if (other) {
    me.wanted = "";
    me.find(".part").replaceChildren(...header.parts.map((name, place) => Object.assign(element("option", "", name), { value: place })));
    me.find(".counted").textContent = header.counted;
  }
  if (other || me.turn !== facts.turn) {
    me.at = Math.max(0, header.steps.findIndex((head) => head.id === facts.step));
    me.turn = facts.turn;
    me.index = indexOf(placeInAddress(PLACE).index);
    me.place.forget();
  }
}

export default function ({ data, parentElement, setStateValue }) {
  const me = (parentElement.stepper ??= start(parentElement));
  me.set = setStateValue;
  me.path = location.pathname;
  const { facts, body } = unpack(data);
  take(me, facts, unpack(body));
  me.show();
  if (!plugin) loadMaths(me.facts.katex).then(() => ((me.find(".list").key = ""), me.show()));

  const keys = (event) => {
    const by = MOVES[event.key];
    if (!by || event.shiftKey || taken(event)) return;
    event.preventDefault();
    me.go(me.at + by, event.repeat);
  };
  const back = ({ step, index }) => {
    const at = step === null ? 0 : me.heads.findIndex((head) => head.id === step);
    if (at < 0) return;
    me.at = at;
    me.index = indexOf(index);
    me.show();
  };
  // The panel of a number follows it to another step, and frames its cell there.
  const shown = ({ detail }) => {
    me.followed = detail.step ? detail : null;
    me.brings = Boolean(detail.step); // into view, once it is drawn
    const at = me.heads.findIndex((head) => head.id === detail.step);
    if (at >= 0) {
      me.at = at;
      detail.index.slice(0, -2).forEach((place, axis) => (me.index[axis] = place));
    }
    me.show();
  };
  const pointed = ({ detail }) => {
    const { pointed: cell, read } = me.heat;
    if (cell?.place === detail.place && detail.exact) read.textContent = cell.words(detail.exact);
  };
  const heard = hear(window, { "cell shown": shown, pointed, keydown: keys });
  const fitted = hear(document.fonts, { loadingdone: me.fit }); // letters of KaTeX come when they are first needed
  return listen(me, me, PLACE, back, heard, fitted);
}
