// What a head does over all queries: how many keys it spreads its weight over, how far it looks, where else it looks.

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
const brief = (number) => decimals(number, Number.isInteger(number) ? 0 : 1);

/** The number of keys that would have the same entropy with equal weights, and that of equal weights on all open keys: both
    by the mean entropy of the queries. */
function spread(map, cells, layer) {
  const [entropies, even] = [[], []];
  for (let query = 0; query < map.queries; query++) {
    let [entropy, keys] = [0, 0];
    row(map, cells, query).forEach((weight, key) => {
      if (weight > 0) entropy -= weight * Math.log(weight);
      if (!isClosed(map, cells, layer, query, key)) keys++;
    });
    if (!keys) continue;
    entropies.push(entropy);
    even.push(Math.log(keys));
  }
  const alike = even.every((entropy) => entropy === even[0]); // then their number is whole
  return [Math.exp(mean(entropies)), alike ? Math.round(Math.exp(even[0])) : Math.exp(mean(even))];
}

/** The mean distance from a patch to the patches that it attends to, and that with equal weights, in widths of a patch. */
function distances(map, cells, layer) {
  const patches = [...map.patches.keys()];
  const [real, even] = [[], []];
  for (const query of patches) {
    const weights = row(map, cells, query);
    let [mass, far, count, around] = [0, 0, 0, 0];
    for (const key of patches) {
      if (isClosed(map, cells, layer, query, key)) continue;
      const [a, b] = [cell(map, query), cell(map, key)];
      const distance = Math.hypot(a[0] - b[0], a[1] - b[1]);
      mass += weights[key];
      far += weights[key] * distance;
      count++;
      around += distance;
    }
    if (mass > 0) {
      real.push(far / mass);
      even.push(around / count);
    }
  }
  return real.length ? [mean(real), mean(even)] : null;
}

/** The weight that some queries give to some keys, as a mean over these queries. */
const weightOn = (map, cells, queries, keysOf) =>
  mean(queries.map((query) => keysOf(query).reduce((sum, key) => sum + row(map, cells, query)[key], 0)));

function habits(map, cells, { layer, view }) {
  if (view === "rollout" || map.queries < 2) return "";
  const who = map.heads === 1 ? "attention" : view === "mean" ? "the mean of the heads" : `head ${Number(view) + 1}`;
  const start = `Over all ${map.queries} queries, ${who} of ${map.blocks[layer]}`;
  if (!cells.some((weight) => weight > 0)) return `${start} attends to nothing: every weight is 0.`;
  if (!map.whole) return "";
  const [keys, even] = spread(map, cells, layer);
  const among = even === map.keys ? `${map.keys} keys` : `the ${brief(even)} that equal weights on all open keys would reach`;
  const sentences = [
    `${start} spreads its weight over about ${brief(keys)} of ${among} ` +
      `(that many equal weights have the same entropy).`,
  ];
  if (map.queries !== map.keys) return sentences[0];
  if (map.photo) {
    const far = distances(map, cells, layer);
    if (far) sentences.push(`The patches that a patch attends to lie ${far[0].toFixed(1)} patch widths away on average; with equal weights, it would be ${far[1].toFixed(1)}.`);
    const [patches, others] = [[...map.patches.keys()], map.others.map(([, token]) => token)];
    if (map.text) sentences.push(`The tokens after the patches give ${percent(weightOn(map, cells, others, () => patches))} of their weight to patches, on average.`);
    else if (others.length && patches.length) {
      const names = others.length === 1 ? map.names[others[0]] : "the other tokens";
      sentences.push(`Patches give ${percent(weightOn(map, cells, patches, () => others))} of their weight to ${names}, on average.`);
    }
  } else if (map.queries > 2 && !map.marks.some((mark) => mark.startsWith("patch "))) {
    const rest = Array.from({ length: map.queries - 2 }, (_, query) => query + 2); // for the second, the one before is the first
    const shares = [(query) => [query], (query) => [query - 1], () => [0]].map((keysOf) => percent(weightOn(map, cells, rest, keysOf)));
    sentences.push(
      `From the third token on, a token gives ${shares[0]} to itself, ${shares[1]} to the token before it and ${shares[2]} to the first token, on average.`,
    );
  }
  return sentences.join(" ");
}
