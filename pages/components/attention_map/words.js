// What is shown, in words: names of tokens, places, the call that gives the same numbers in Python.

// Rows and columns of the photo, and the tokens that are its patches; a patch that a tower was not given has none.
const isPatch = (map, token) => map.patches.has(token);
const cell = (map, token) => cellOf(map.patches.get(token), map.columns);
const tokenAt = (map, r, c) => map.tokens[r * map.columns + c];
const hasNone = (map, r, c) => `Row ${r + 1}, column ${c + 1} was hidden from the ${map.tower}: no token, so no query.`;

// Where a patch lies, by its number: row and column, then its pixels in the picture that the model sees.
function ruleOf(map, token) {
  if (!isPatch(map, token)) return ["", ""];
  const [n, w, P] = [map.patches.get(token), map.columns, map.side];
  const [r, c] = cell(map, token);
  const place =
    `Patch n = ${n + 1} of ${w * map.rows}, with w = ${P ? "W/P = " : ""}${w} patches in a row: row ⌊(n − 1)/w⌋ + 1 = ⌊${n}/${w}⌋ + 1 = ${r + 1}, ` +
    `column (n − 1) mod w + 1 = ${n} mod ${w} + 1 = ${c + 1}.`;
  const pixels = (name, at) => `${name} ${at}·P + 1 = ${at * P + 1} to ${at + 1}·P = ${(at + 1) * P}`;
  return [place, P ? `Its pixels, at P = ${P}: ${pixels("rows", r)}, ${pixels("columns", c)} of ${map.rows * P} × ${w * P}.` : ""];
}

// The parts of a name, so that no line breaks within the place of a patch.
function unbroken(name) {
  return name.split(/(\(row [^)]*\))/).map((part, number) => (number % 2 ? element("span", "", part) : part));
}

// The first token from a place on, by steps of so many rows and columns; null where there is none up to the edge.
function tokenBeyond(map, [r, c], [down, right]) {
  for (let [i, j] = [r + down, c + right]; i >= 0 && j >= 0 && i < map.rows && j < map.columns; i += down, j += right) {
    if (tokenAt(map, i, j) !== null) return tokenAt(map, i, j);
  }
  return null;
}

const maskName = (map) => `the ${["causal", "prefix", "padded", "windows"].includes(map.kind) ? `${map.kind} ` : ""}mask`;

const queryName = (map, { query, pinned }) => map.names[query] + (pinned ? ", pinned" : "");

const allBlocks = (count) => (count === 1 ? "the one block" : `all ${count} blocks`);

// What a share on the colour bar is a share of. A rollout is there only where it goes over all blocks to choose from.
function shareOf(map, { view }) {
  if (view !== "rollout") {
    if (map.zero) return "Every attention weight is 0.";
    if (!map.whole) return "Attention weight. Here, not every row of the matrix (one query) sums to 1.";
    return "Attention weight: each row of the matrix (one query) sums to 1.";
  }
  const blocks = map.choices.length;
  return (
    `This is rollout (Abnar and Zuidema 2020), not an attention weight of any block: attention is propagated through ` +
    `${allBlocks(blocks)}. ` +
    `Each block’s map A (the mean over its heads) and the identity I count half each, (A + I) / 2: I stands for the ` +
    `residual connection, which passes a token on unchanged. Their product over the blocks says from which input tokens ` +
    `a token after the last block would be mixed if nothing but these weights mixed them. Each row sums to 1. On the ` +
    `diagonal, ${percent(0.5 ** blocks)} comes from I alone.`
  );
}

/** The one convention: on screen all counts from 1, in code from 0. */
function counted(map, layer, view, query) {
  const head = map.heads > 1 && view !== "mean" ? `, head ${Number(view) + 1} is head=${view}` : "";
  return `On screen everything counts from 1, in Python from 0: ${map.blocks[layer]} is layer=${layer}${head}, token ${query + 1} is query=${query}.`;
}

function inWords(map, { layer, view, query }) {
  const part = map.part && `, part="${map.part}"`;
  const place =
    isPatch(map, query) && map.patches.size < map.tokens.length
      ? ` Here ${map.marks[query]} is the patch, counted over the whole photo; query=${query} is its place among the ` +
        `${map.patches.size} visible ones.`
      : "";
  if (view === "rollout") {
    const python = `tracer.attention.rollout(trace${part})[0, ${query}]`;
    const lead = `By rollout over ${allBlocks(map.choices.length)}: what arrives at ${map.names[query]} comes most from:`;
    return { lead, python, note: place };
  }
  const mean = view === "mean";
  const heads = map.heads > 1 ? (mean ? `, mean of ${map.heads} heads` : `, head ${Number(view) + 1}`) : "";
  return {
    lead: `${map.blocks[layer][0].toUpperCase()}${map.blocks[layer].slice(1)}${heads}: ${map.names[query]} attends most to:`,
    python: `trace.attention(layer=${layer}, ${mean ? "" : `head=${view}, `}query=${query}${part})${mean ? ".mean(1)" : ""}`,
    note: `${counted(map, layer, view, query)}${place}`,
  };
}

// Of how many tokens the query may choose, and what each got if all got the same.
function evenShare(map, open) {
  const which = open.length === map.keys ? `all ${map.keys} tokens` : `the ${open.length} open tokens`;
  return open.length > 1 ? `If ${which} of this row had equal weights, each would have ${percent(1 / open.length)} (▲).` : "";
}
