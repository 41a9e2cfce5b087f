// One step: its equation, shape, words, pictures and operations.

const VERDICTS = { verified: "✓", refuted: "✕", pending: "…" };

function sliders(me, picture, draw) {
  return picture.lead
    .map(([label, size], axis) => ({ label, size, axis }))
    .filter(({ size }) => size > 1)
    .map(({ label, size, axis }) => {
      const input = element("input");
      Object.assign(input, { type: "range", min: 0, max: size - 1 });
      input.value = Math.min(me.index[axis] ?? 0, size - 1);
      input.ariaValueText = `${Number(input.value) + 1} of ${size}`;
      const output = element("output", "", Number(input.value) + 1);
      input.oninput = () => {
        me.index[axis] = Number(input.value);
        output.textContent = Number(input.value) + 1;
        input.ariaValueText = `${output.textContent} of ${size}`;
        draw();
        me.place.moved(me.here(), true);
      };
      return element("label", "lead", element("span", "", ...sentence(label)), input, output);
    });
}

/** Which matrix of a tensor is chosen, counted in order. */
const chosen = (me, picture) =>
  picture.lead.reduce((at, [, size], axis) => at * size + Math.min(me.index[axis] ?? 0, size - 1), 0);

function drawTensor(me, find, detail, ask) {
  const { tensor } = detail;
  const there = typeof tensor !== "string";
  const head = me.heads[me.at];
  find(".tensor").hidden = find(".leads").hidden = !there;
  find(".picture h3").hidden = !there;
  if (!there) return say(find(".picture .status"), tensor);
  const follow = { place: (place, down, across) => placeOfCells(me, head, tensor, place, down, across) };
  const draw = () => {
    const place = chosen(me, tensor);
    const came = tensor.which.indexOf(place);
    if (came < 0) return ask(me.at);
    drawHeat(me.heat, tensor, place, { symbol: head.symbol, plain: head.plain, colours: me.colours, mask: me.mask, follow });
    markCell(me, head, tensor, place);
    say(find(".picture .status"), tensor.slices[came][4] || "Every value is shown.");
    drawTerms(me, find, detail);
  };
  find(".leads").replaceChildren(...sliders(me, tensor, draw));
  draw();
}

/** The index on the leading axes of matrix number `place`. */
function leadOf(picture, place) {
  const lead = [];
  for (const [, size] of [...picture.lead].reverse()) {
    lead.unshift(place % size);
    place = Math.floor(place / size);
  }
  return lead;
}

/** The name of a cell, or of the box that a cell of the picture is the mean of: its tensor, and its index from 0. */
function placeOfCells(me, head, picture, place, down, across) {
  const span = ([from, to]) => (to > from ? `${from}-${to}` : String(from));
  const index = [...leadOf(picture, place), span(down), span(across)];
  return `${head.id}:${index.slice(Math.max(0, index.length - head.rank)).join(".")}`;
}

/** Frames the cell that is followed, where it is in the matrix that is shown. */
function markCell(me, head, picture, place) {
  const { followed } = me;
  if (!followed || followed.step !== head.id) return;
  const index = [...Array(Math.max(0, 2 - followed.index.length)).fill(0), ...followed.index];
  const here = leadOf(picture, place).every((at, axis) => at === index[axis]);
  me.heat.markPlace(here ? index.slice(-2) : null);
  if (here && me.brings) me.heat.mark.scrollIntoView({ block: "nearest" });
  me.brings = false;
}

function drawTerms(me, find, { terms }) {
  find(".terms").hidden = !terms;
  if (!terms) return;
  const head = Math.min(me.index[1] ?? 0, terms.heads - 1);
  const came = terms.which.indexOf(head);
  if (came < 0) return;
  drawMaps(find(".maps"), terms, head, me.colours);
  const bold = (text) => ["bold", text];
  say(find(".terms .status"), [
    ["text", `Head ${head + 1}, in the order query–key. By root mean square the largest is `], bold(terms.largest[came]),
    ["text", ". Over all heads, the sum differs from the scores that ran by at most "], bold(terms.error),
    ["text", ` of the largest score. One scale for all six maps: from ${numeral(-terms.edges[came], 3)} to ${numeral(terms.edges[came], 3)}.`],
  ]);
}

function drawCode(box, code) {
  box.replaceChildren(
    ...code.flatMap(({ place, text, hint }) => {
      const lines = element("pre", "", element("code", "", text));
      return [element("p", "place", place), lines, ...(hint ? [element("p", "hint", hint)] : [])];
    }),
  );
}

const NUMBERS = new Set(["op", "parameters", "FLOP"]);
function drawOps(find, columns, ops) {
  find(".covered h3").textContent = ops.title;
  say(find(".covered > .status"), ops.remark);
  say(find(".covered > .more"), ops.more);
  const cell = (tag, value, column) => {
    const text = typeof value === "number" ? value.toLocaleString("en-US") : value;
    return element(tag, NUMBERS.has(columns[column]) ? "number" : "", text);
  };
  find(".covered thead tr").replaceChildren(
    ...columns.map((name, column) => Object.assign(cell("th", name, column), { scope: "col" })),
  );
  find(".covered tbody").replaceChildren(...ops.rows.map((row) => element("tr", "", ...row.map((value, i) => cell("td", value, i)))));
}

/** Draws all of the step that is chosen; `ask` asks the server for what did not come yet. */
function drawStep(me, find, ask) {
  const head = me.heads[me.at];
  const detail = me.details.get(head.id);
  find(".title").textContent = head.title;
  find(".count").textContent = `${me.at + 1} of ${me.heads.length}`;
  find(".stage").textContent = head.stage;
  find(".stage").style.setProperty("--stage", head.colour);
  find(".previous").disabled = me.at === 0;
  find(".next").disabled = me.at === me.heads.length - 1;
  find(".waiting").hidden = Boolean(detail);
  for (const part of [".equation", ".inside", ".body", ".covered"]) find(part).hidden = !detail;
  for (const part of [".terms", ".product"]) find(part).hidden = true;
  if (!detail) {
    find(".waiting").textContent = "Fetching this step …";
    ask(me.at);
    return;
  }
  const line = element("div", "", maths(detail.latex, true));
  find(".equation").replaceChildren(line);
  fitLine(line);
  find(".sizes").replaceChildren(maths(detail.inside));
  for (const part of ["repeat", "names", "noted", "why", "note"]) say(find(`.${part}`), detail[part] || []);
  const verdict = find(".verdict");
  verdict.dataset.verdict = detail.verdict;
  verdict.title = me.facts.meaning;
  say(verdict, detail.proof);
  verdict.prepend(Object.assign(element("span", "sign", VERDICTS[detail.verdict] ?? "i"), { ariaHidden: "true" }));
  drawCode(find(".code"), detail.code ?? []);
  drawTensor(me, find, detail, ask);
  drawTerms(me, find, detail);
  find(".product").hidden = !detail.product;
  if (detail.product) {
    find(".product .slot").replaceChildren(drawn(detail.product.svg));
    say(find(".product .status"), detail.product.caption);
  }
  drawOps(find, me.columns, detail.ops);
  if (detail.verdict === "pending" && me.prove) ask(me.at, { prove: true });
}
