// What Python packed: facts of the visitor, then the weights, the masks that ran, the colour scale and the photo.

function unpack(data) {
  const [facts, below] = headed(data);
  const bytes = data.subarray(below);
  const [header, begin] = headed(bytes);
  const { layers, views, queries, keys, rollout, masks, jpeg } = header;
  let at = begin;
  const take = (size) => bytes.slice(at, (at += size));
  const weights = take(4 * (layers.length * views.length + (rollout ? 1 : 0)) * queries * keys);
  const [hidden, colours, jpegBytes] = [masks * queries * keys, 768, jpeg].map(take);
  const tokens = header.tokens ?? []; // the token of each patch of the photo, or null
  return {
    ...header,
    facts,
    tokens,
    patches: new Map(tokens.map((token, patch) => [token, patch]).filter(([token]) => token !== null)),
    weights: new Float32Array(weights.buffer),
    hidden,
    colours,
    jpegBytes,
    picture: () => createImageBitmap(new Blob([jpegBytes], { type: "image/jpeg" })),
  };
}

// Whether what was chosen came with this message; what did not is asked of the server.
const has = (map, { layer, view }) =>
  view === "rollout"
    ? map.rollout
    : map.layers.includes(layer) && (map.views.includes(view) || (view === "mean" && map.views.length === map.heads));

// The attention matrix of a head, of the mean over heads, or of the rollout, row after row.
function matrix(map, { layer, view }) {
  const { views, queries, keys, weights, layers } = map;
  const size = queries * keys;
  const at = (index) => weights.subarray(index * size, (index + 1) * size);
  if (view === "rollout") return at(layers.length * views.length);
  const first = layers.indexOf(layer) * views.length;
  if (views.includes(view)) return at(first + views.indexOf(view));
  const mean = new Float32Array(size);
  for (let head = 0; head < views.length; head++) {
    at(first + head).forEach((weight, cell) => (mean[cell] += weight / views.length));
  }
  return mean;
}

const row = (map, cells, query) => cells.subarray(query * map.keys, (query + 1) * map.keys);

// Whether the mask that ran closes a cell. What a rollout reaches on its way through other tokens is not closed.
function isClosed(map, cells, layer, query, key) {
  const cell = query * map.keys + key;
  const mask = map.masks > 1 ? Math.max(0, map.layers.indexOf(layer)) : 0;
  return map.masks > 0 && map.hidden[mask * map.queries * map.keys + cell] === 1 && cells[cell] === 0;
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
