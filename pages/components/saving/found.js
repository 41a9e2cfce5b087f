// What of the page can be saved, found where it is: figures, tables and equations, also inside components.

const FIGURES = "[data-figure], svg[role=img], .js-plotly-plot";
const LONGEST_NAME = 70;

/** All elements that a selector finds, through the roots of components too. */
function* everywhere(selector, root = document) {
  yield* root.querySelectorAll(selector);
  for (const element of root.querySelectorAll("*")) if (element.shadowRoot) yield* everywhere(selector, element.shadowRoot);
}

const shownOnPage = (element) =>
  element.checkVisibility({ visibilityProperty: true }) && element.getBoundingClientRect().width > 8;

const short = (text) => {
  const plain = text.replace(/\s+/g, " ").trim();
  return plain.length > LONGEST_NAME ? `${plain.slice(0, LONGEST_NAME)} …` : plain;
};

const nameOf = (element) =>
  element.dataset.figure || element.getAttribute("aria-label") || element.closest("[aria-label]")?.getAttribute("aria-label") || "Figure";

const headingOf = (element) =>
  element.closest("[role=region][aria-label]")?.getAttribute("aria-label") ?? element.getAttribute("aria-label") ?? "Table";

function keep(name, ending, blob) {
  const file = name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "figure";
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${file}.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const textFile = (text, type) => async () => new Blob([text], { type: `${type};charset=utf-8` });

/** What there is: a name, and for each ending of a file what makes it. */
function found() {
  const items = [];
  for (const box of everywhere(FIGURES)) {
    if (!shownOnPage(box) || box.parentElement?.closest(FIGURES)) continue;
    items.push([short(nameOf(box)), { svg: () => figureFile(box, "svg"), png: () => figureFile(box, "png") }]);
  }
  for (const table of everywhere("table:not(canvas table, .katex table)")) {
    if (shownOnPage(table) && table.rows.length > 1) items.push([short(headingOf(table)), { csv: () => textFile(tableText(table), "text/csv")() }]);
  }
  for (const annotation of everywhere(".katex-display annotation")) {
    if (shownOnPage(annotation.closest(".katex-display"))) items.push([short(annotation.textContent), { tex: textFile(annotation.textContent, "text/x-tex") }]);
  }
  return items;
}

const ENDINGS = { svg: "SVG", png: "PNG", csv: "CSV", tex: "LaTeX" };

function listFound(list, none) {
  const items = found();
  none.hidden = items.length > 0;
  list.replaceChildren(
    ...items.map(([name, ways]) => {
      const buttons = Object.entries(ways).map(([ending, make]) => {
        const button = makeButton(async () => keep(name, ending, await make()), "", ENDINGS[ending]);
        button.setAttribute("aria-label", `${ENDINGS[ending]}: ${name}`);
        return button;
      });
      return element("li", "", element("span", "", name), ...buttons);
    }),
  );
}
