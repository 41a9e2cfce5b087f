// The token of the middle patch, or of the one nearest to it that has a token.
function middle(map) {
  const away = (token) => {
    const [r, c] = cell(map, token);
    return Math.hypot(r - Math.floor(map.rows / 2), c - Math.floor(map.columns / 2));
  };
  return [...map.patches.keys()].sort((a, b) => away(a) - away(b))[0];
}

// The query to begin with, which tells most: the token that is read for the answer. Where words follow the patches, or
// there is no photo, it is the last, that the next word comes from; else CLS; without one the middle patch.
function telling(map) {
  if (!map.photo || map.text) return map.queries - 1;
  return map.others.find(([name]) => name === "CLS")?.[1] ?? middle(map);
}
