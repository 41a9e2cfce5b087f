// A text, each token coloured by what it gets of one row: the brighter its ground, the larger its weight.

function laySentence(map, find, state, choose) {
  const box = find(".sentence");
  const letters = map.words.every(([, word]) => [...word].length === 1);
  box.classList.toggle("letters", letters);
  const spans = new Map(
    map.words.map(([token, word]) => {
      const span = document.createElement("span");
      span.textContent = letters ? word : word.trim() || word;
      span.dataset.token = token;
      if (word === "\n") span.innerHTML = "<small>⏎</small>\n";
      return [token, span];
    }),
  );
  box.replaceChildren(...[...spans.values()].flatMap((span) => (letters ? [span] : [span, " "])));

  const at = (event) => {
    const span = event.target.closest("[data-token]");
    return span ? Number(span.dataset.token) : null;
  };
  box.onpointerover = (event) => {
    const query = at(event);
    if (query !== null) preview(map, state, choose, query); // between two words nothing changes
  };
  box.onpointerleave = () => {
    preview(map, state, choose, null);
  };
  box.onclick = (event) => {
    const query = at(event);
    if (query !== null) press(map, state, choose, query);
  };
  box.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const query = state.query + step;
    if (!step || !spans.has(query)) return;
    event.preventDefault();
    choose({ query, pinned: true }, true, event.repeat);
  };

  function draw(cells) {
    const weights = row(map, cells, state.query);
    const most = Math.max(...[...spans.keys()].map((token) => weights[token]));
    for (const [token, span] of spans) {
      const share = most > 0 ? weights[token] / most : 0;
      const closed = isClosed(map, cells, state.layer, state.query, token);
      span.style.setProperty("--share", closed ? 0 : share);
      span.title = closed ? `closed by ${maskName(map)}` : percent(weights[token]);
      span.classList.toggle("bright", !closed && share > 0.5);
      span.classList.toggle("closed", closed);
      span.classList.toggle("on", token === state.query);
      span.classList.toggle("pinned", token === state.query && state.pinned);
    }
    box.setAttribute("aria-label", `The text. Query: ${queryName(map, state)}. Left and right arrow keys move it.`);
  }
  return { draw };
}
