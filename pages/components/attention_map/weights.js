// The weights of the map: what came, a matrix of it, a row, and what a mask closes there.

function opened(data) {
  const { facts, body } = unpack(data);
  const map = unpack(body);
  const tokens = map.tokens ?? []; // the token of each patch of the photo, or null
  const patches = new Map(tokens.map((token, patch) => [token, patch]).filter(([token]) => token !== null));
  return { ...map, facts, tokens, patches, picture: () => imageBitmap(map.jpeg) };
}

// Whether what was chosen came with this message; what did not is asked of the server.
const has = (map, { layer, view }) =>
  view === "rollout"
    ? Boolean(map.rollout)
    : map.layers.includes(layer) && (map.views.includes(view) || (view === "mean" && map.views.length === map.heads));

// The attention matrix of a head, of the mean over heads, or of the rollout, row after row.
function matrix(map, { layer, view }) {
  const { views, queries, keys, weights, layers, rollout } = map;
  const size = queries * keys;
  const at = (index) => weights.subarray(index * size, (index + 1) * size);
  if (view === "rollout") return rollout;
  const first = layers.indexOf(layer) * views.length;
  if (views.includes(view)) return at(first + views.indexOf(view));
  return meanOf(weights, views.map((_, head) => first + head), size);
}

const row = (map, cells, query) => cells.subarray(query * map.keys, (query + 1) * map.keys);

// Whether the mask that ran closes a cell. What a rollout reaches on its way through other tokens is not closed.
function isClosed(map, cells, layer, query, key) {
  const cell = query * map.keys + key;
  const [count] = map.masks.shape;
  const mask = count > 1 ? Math.max(0, map.layers.indexOf(layer)) : 0;
  return count > 0 && map.masks[mask * map.queries * map.keys + cell] === 1 && cells[cell] === 0;
}

// The keys that a query may look at, the one with the largest weight first.
const openKeys = (map, cells, { layer, query }) => {
  const weights = row(map, cells, query);
  const open = [...weights.keys()].filter((key) => !isClosed(map, cells, layer, query, key));
  return open.sort((a, b) => weights[b] - weights[a]);
};

// Whether the weights of each query sum to 1, up to the rounding of the least exact dtypes.
const sumsToOne = (map, cells) =>
  Array.from({ length: map.queries }, (_, query) => row(map, cells, query).reduce((sum, weight) => sum + weight, 0)).every(
    (sum) => Math.abs(sum - 1) < 0.01,
  );
