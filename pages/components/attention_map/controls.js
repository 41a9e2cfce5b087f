// What the visitor chooses with: radio buttons that wrap, boxes for numbers, buttons for tokens that are no patch.

function choices(fieldset, options, chosen, pick) {
  fieldset.querySelector("div").replaceChildren(
    ...options.map(([value, text]) =>
      makeRadio(fieldset.dataset.group, value, text, String(value) === String(chosen), () => pick(value)),
    ),
  );
  fieldset.hidden = options.length < 2;
}

// Boxes for row, column and token. What is no such number is quoted, and the query stays.
function numberBoxes(map, all, status, state, choose) {
  const sizes = { row: map.rows, column: map.columns, token: map.queries };
  const here = () => (isPatch(map, state.query) ? cell(map, state.query) : ["", ""]);
  const now = (axis) => ({ row: here()[0], column: here()[1], token: state.query })[axis];
  const place = (axis, value) => {
    const [r, c] = here().map(Number);
    return axis === "row" ? [value, c] : [r, value];
  };
  const tokenOf = (axis, value) => (axis === "token" ? value : tokenAt(map, ...place(axis, value)));
  const kept = (axis) => `Kept ${now(axis) === "" ? "the query" : now(axis) + 1}.`;
  for (const input of all(".position input")) {
    const { axis } = input.dataset;
    const size = sizes[axis];
    input.parentElement.hidden = !size;
    if (!size) continue;
    input.setAttribute("aria-valuemin", 1);
    input.setAttribute("aria-valuemax", size);
    input.onchange = () => {
      const text = input.value.trim();
      const fits = /^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= size;
      const query = fits ? tokenOf(axis, Number(text) - 1) : null;
      const problem = fits
        ? query === null && hasNone(map, ...place(axis, Number(text) - 1))
        : `“${text}” is not a ${axis}: expected a whole number from 1 to ${size}.`;
      if (problem) draw();
      else choose({ query, pinned: true });
      status.textContent = problem ? `${problem} ${kept(axis)}` : "";
    };
    input.onkeydown = (event) => {
      const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const along = axis === "row" ? [step, 0] : [0, step];
      const next = within(state.query + step, size);
      const query = axis === "token" ? next : tokenBeyond(map, here().map(Number), along);
      choose({ query: query ?? state.query, pinned: true }, true, event.repeat);
    };
  }
  function draw() {
    for (const input of all(".position input")) {
      const at = now(input.dataset.axis);
      input.value = at === "" ? "" : at + 1; // on screen they count from 1
      input.setAttribute("aria-valuenow", input.value);
    }
    status.textContent = "";
  }
  return draw;
}

// Tokens beside the patches: each can be the query, and says what it gets of the query's row.
function tokenButtons(map, find, cells, state, choose) {
  const many = map.others.length > 2; // words of a text: a list of choices, each with what it gets
  const weights = row(map, cells, state.query);
  const closed = (token) => isClosed(map, cells, state.layer, state.query, token);
  find(".others-title").hidden = !many;
  find(".others-title").textContent = `Use as the query, and ${state.view === "rollout" ? "its share" : "what it gets"}:`;
  find(".others").replaceChildren(
    ...map.others.map(([name, token]) => {
      const gets = closed(token) ? "closed" : percent(weights[token]);
      const of = state.view === "rollout" ? `share ${gets}` : `gets ${gets}`;
      const unseen = (text) => element("span", "unseen", text);
      const alone = state.query === token ? `${name} is the query` : `Use ${name} as the query`;
      const says = many ? [unseen("Use "), name, unseen(" as the query")] : [alone];
      const weight = element("small", "", many ? gets : `${name} ${closed(token) ? gets : of}`);
      const button = makeButton(() => press(map, state, choose, token), "", ...says, weight);
      button.setAttribute("aria-pressed", String(state.query === token));
      return button;
    }),
  );
  const count = map.others.filter(([, token]) => closed(token)).length;
  find(".closed-note").hidden = count === 0;
  find(".closed-note").textContent = `“closed”: ${maskName(map)} that ran keeps this query from attending to this key. The Mask page shows it.`;
}
