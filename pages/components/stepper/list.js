// The list of steps: those of one part, or those that a filter finds in all of them.

const MOST_FOUND = 200;

/** Rows get their equations when they come into sight: there may be hundreds. */
const inSight = (list) =>
  new IntersectionObserver(
    (entries, observer) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        target.render();
      }
    },
    { root: list, rootMargin: "200px" },
  );

function rowOf(me, at, go) {
  const head = me.heads[at];
  const mark = element("i", "mark");
  mark.style.background = head.colour;
  mark.setAttribute("aria-hidden", "true");
  const symbol = element("span", "symbol", head.plain);
  const sizes = element("span", "", head.sizes ? "" : head.shape);
  const name = element("span", "name", mark, symbol, ` ${head.title}`);
  const button = makeButton(() => go(at), "", name, element("small", "", sizes, head.sizes ? `  ${head.shape}` : ""));
  button.dataset.at = at;
  button.dataset.step = head.id;
  const row = element("li", "", button);
  row.render = () => {
    if (head.symbol) symbol.replaceChildren(maths(head.symbol));
    if (head.sizes) sizes.replaceChildren(maths(head.sizes));
  };
  return row;
}

/** Draws the list anew where other steps belong into it, and marks the one that is shown. */
function drawList(me, find, go) {
  const { heads, at } = me;
  const asked = find(".find").value.trim().toLowerCase();
  const only = find(".changes").checked;
  const matches = ({ title, id, plain }) => `${title} ${id} ${plain}`.toLowerCase().includes(asked);
  const here = (head, place) => (asked ? matches(head) : head.part === heads[at].part);
  let shown = [...heads.keys()].filter((place) => here(heads[place], place) && (!only || heads[place].changes || place === at));
  const found = shown.length;
  shown = shown.slice(0, MOST_FOUND + (asked ? 0 : found));
  const list = find(".list");
  const key = [me.run, ...shown].join();
  if (list.key !== key) {
    list.key = key;
    list.seen?.disconnect();
    list.seen = inSight(list);
    const rows = shown.map((place) => rowOf(me, place, go));
    list.replaceChildren(...rows);
    rows.forEach((row) => list.seen.observe(row));
    list.status = found > shown.length ? `The first ${shown.length} of ${found} that match.` : found ? "" : "No step matches.";
  }
  const away = shown.includes(at) ? "" : ` “${heads[at].title}”, which is open, is not among them.`;
  find(".none").textContent = `${list.status}${away}`.trim();
  find(".none").hidden = !find(".none").textContent;
  find(".part").value = String(heads[at].part);
  for (const button of list.querySelectorAll("button")) {
    const chosen = Number(button.dataset.at) === at;
    button.tabIndex = chosen || (!shown.includes(at) && button.dataset.at === String(shown[0])) ? 0 : -1;
    button.toggleAttribute("data-chosen", chosen);
    if (!chosen) button.removeAttribute("aria-current");
    else button.setAttribute("aria-current", "step");
  }
}

/** Scrolls the list, and nothing but the list, to the step that is shown. */
function followList(list) {
  const row = list.querySelector("[data-chosen]")?.getBoundingClientRect();
  const box = list.getBoundingClientRect();
  if (row && row.top < box.top) list.scrollTop += row.top - box.top - 4;
  else if (row && row.bottom > box.bottom) list.scrollTop += row.bottom - box.bottom + 4;
}
