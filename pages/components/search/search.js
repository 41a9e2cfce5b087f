// The search: words in, places out. All of it runs in the browser; the index comes once, when it is first opened.

const MOST_FOUND = 30;
const STOP = new Set("a an the of by to is are do does did we you i it in on for and or with at from this that what how why where which when its be not".split(" "));
const SAME = { root: "sqrt", "√": "sqrt", divide: "divided", dividing: "divided", nonlinear: "nonlinearity", maps: "map", heads: "head", positions: "position", tokens: "token", patches: "patch", normalize: "norm", normalise: "norm", shuffled: "shuffle", shuffling: "shuffle", hiding: "hide", layernorm: "norm", attn: "attention" };
const WEIGHT = { step: 1.15, page: 1.1, lesson: 1, symbol: 1.05, term: 1.05, operation: 0.95, head: 1.1, "what if": 1.15, statement: 0.55 };

const wordsOf = (text) => text.toLowerCase().normalize("NFKD").replace(/[̀-ͯ]/g, "").match(/[\p{L}\p{N}_√∞]+/gu) ?? [];

/** How well a word is among others: 3 for itself, 2 for a beginning, 1 for a part. */
function hit(word, among) {
  let best = 0;
  for (const other of among) {
    if (other === word) return 3;
    if (word.length > 2 && other.startsWith(word)) best = Math.max(best, 2);
    else if (word.length > 3 && (other.includes(word) || (other.length > 3 && word.startsWith(other)))) best = Math.max(best, 1);
  }
  return best;
}

function prepared(entries) {
  return entries.map((entry) => ({ ...entry, in: [[4, wordsOf(entry.title)], [3, wordsOf(entry.words)], [1, wordsOf(entry.text)]] }));
}

/** The entries that have most of the words, the best first. */
function searched(entries, text) {
  const all = wordsOf(text);
  const asked = all.filter((word) => !STOP.has(word));
  const words = asked.length ? asked : all;
  if (!words.length) return [];
  const scored = entries.map((entry, at) => {
    let score = 0;
    let missed = 0;
    for (const word of words) {
      const best = Math.max(...entry.in.map(([weight, among]) => weight * Math.max(hit(word, among), SAME[word] ? hit(SAME[word], among) : 0)));
      if (best) score += best;
      else missed += 1;
    }
    if (entry.title.toLowerCase() === text.trim().toLowerCase()) score += 10;
    return { entry, at, score: (score * (WEIGHT[entry.kind] ?? 1)) / (1 + missed), missed };
  });
  const enough = scored.filter(({ score, missed }) => score > 0 && missed <= words.length / 2);
  return enough.sort((a, b) => b.score - a.score || a.at - b.at).slice(0, MOST_FOUND).map(({ entry }) => entry);
}

function startSearch(root) {
  const at = (selector) => root.querySelector(selector);
  const me = { index: null, name: null, found: [], chosen: 0 };
  const [dialog, input, results] = [at("dialog"), at("dialog input"), at(".results")];
  const choose = (place) => {
    me.chosen = Math.min(Math.max(0, place), me.found.length - 1);
    [...results.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === me.chosen)));
    const row = results.children[me.chosen];
    row?.scrollIntoView({ block: "nearest" });
    if (row) input.setAttribute("aria-activedescendant", row.id);
    else input.removeAttribute("aria-activedescendant");
  };
  me.draw = () => {
    if (!me.index) {
      at(".search .status").textContent = dialog.open ? "Reading the index …" : "";
      return;
    }
    me.found = searched(me.index, input.value);
    results.replaceChildren(
      ...me.found.map(({ kind, title, text, to }, place) => {
        const parts = [["kind", kind], ["title", title], ["text", text]];
        const link = element("a", "", ...parts.map(([className, words]) => element("span", className, words)));
        const row = element("li", "", Object.assign(link, { href: to, tabIndex: -1 }));
        row.id = `result-${place}`;
        row.setAttribute("role", "option");
        link.onclick = (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          me.go(to);
        };
        return row;
      }),
    );
    const count = me.found.length;
    at(".search .status").textContent = !input.value.trim() ? `${me.index.length} things can be found.` : count ? `${count}${count === MOST_FOUND ? " or more" : ""} found` : "Nothing found. Try a word of an equation, a shape, or a name in the code.";
    choose(0);
  };
  me.ask = () => {
    if (dialog.open && me.index === null && me.asked !== me.name) me.set("wanted", (me.asked = me.name));
  };
  me.open = () => {
    if (dialog.open) return;
    dialog.showModal();
    input.select();
    me.ask();
    me.draw();
  };
  me.go = (to) => {
    dialog.close();
    history.pushState({}, "", new URL(to, document.baseURI));
    dispatchEvent(new PopStateEvent("popstate", { state: {} })); // to Streamlit, one went there in the history
  };
  handle(at(".seek"), "click", me.open);
  handle(input, "input", me.draw);
  input.onkeydown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (by) {
      event.preventDefault();
      choose(me.chosen + by);
    } else if (event.key === "Escape") {
      event.preventDefault(); // a field for a search would only empty itself
      dialog.close();
    } else if (event.key === "Enter" && me.found[me.chosen]) {
      event.preventDefault();
      me.go(me.found[me.chosen].to);
    }
  };
  dialog.onclick = (event) => {
    if (event.target === dialog) dialog.close();
  };
  return me;
}

/** Takes what can be found now: its name, and its entries once they came. */
function takeSearch(me, { name, entries }, set) {
  me.set = set;
  if (me.name !== name) Object.assign(me, { name, index: null });
  if (entries) me.index = prepared(entries);
  me.ask(); // what is on screen may be another run by now
  me.draw();
}
