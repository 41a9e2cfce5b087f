// The token of the middle patch, or of the one nearest to it that has a token.
function middle(map) {
  const away = (token) => {
    const [r, c] = cell(map, token);
    return Math.hypot(r - Math.floor(map.rows / 2), c - Math.floor(map.columns / 2));
  };
  return [...map.patches.keys()].sort((a, b) => away(a) - away(b))[0];
}

// Shows the row of the token that is pointed at, for as long as it is; where none is, the row to begin with. A query that
// is pinned stays.
function preview(map, state, choose, query) {
  const shown = query ?? map.start;
  if (!state.pinned && shown !== state.query) choose({ query: shown }, false);
}

// Pins a query, or frees it when it is the one that is pinned.
function press(map, state, choose, query) {
  const free = state.pinned && query === state.query;
  choose({ query: free ? map.start : query, pinned: !free });
}

// Escape frees the query that is pinned, wherever on the map the focus is, or where nothing has it. Returns what stops it.
function escapes(root, { start }, state, choose) {
  const pressed = (event) => {
    const ours = event.target === document.body || event.composedPath().includes(root);
    if (event.key !== "Escape" || !ours || (!state.pinned && state.query === start)) return;
    event.preventDefault(); // a page that is presented stays so
    choose({ query: start, pinned: false });
  };
  return hear(window, { keydown: pressed }, true);
}

const howToFree = (map, how) => `Pinned: ${how} it again, or press Escape, to go back to ${map.names[map.start]}.`;

// The query to begin with, which tells most: the token that is read for the answer. Where words follow the patches it is
// the last, that the next word comes from; else CLS; without one the middle patch, or the last token without a photo.
function telling(map) {
  const cls = map.names.indexOf("CLS");
  if (map.text || (cls < 0 && !map.photo)) return map.queries - 1;
  return cls < 0 ? middle(map) : cls;
}
