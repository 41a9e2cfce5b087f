// What is shown, in words: percentages, names of tokens, the call that gives the same numbers in Python.

const percent = (weight) => {
  const value = 100 * weight;
  return `${value >= 9.995 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(2) : value.toPrecision(1)} %`;
};

const isPatch = (map, token) => map.photo && token >= map.first && token < map.first + map.rows * map.columns;
const cell = (map, token) => [Math.floor((token - map.first) / map.columns), (token - map.first) % map.columns];

const maskName = (map) => `the ${["causal", "prefix", "padded"].includes(map.kind) ? `${map.kind} ` : ""}mask`;

const queryName = (map, { query, pinned }) => map.names[query] + (pinned ? ", pinned" : "");

// What a share on the colour bar is a share of. A rollout is there only where it goes over all blocks to choose from.
function shareOf(map, { view }) {
  if (view !== "rollout") return "Attention weight, a share of its row: each row of the matrix (a query) sums to 1.";
  const blocks = map.choices.length;
  return (
    `Rollout (Abnar and Zuidema 2020), no attention weight: a share of the query’s row in the product over all ${blocks} ` +
    `blocks of (A + I) / 2, A a block’s mean over heads. Each row sums to 1. On the diagonal, a token’s share of itself, ` +
    `${percent(0.5 ** blocks)} of the row comes from the added identity I alone.`
  );
}

function inWords(map, { layer, view, query }) {
  const part = map.part && `, part="${map.part}"`;
  const place = map.visible.length
    ? ` Here ${map.marks[query]} is the patch, counted over the whole photo; query=${query} is its place among the ` +
      `${map.visible.length} visible ones. Hidden patches have no token here, so the axes leave their numbers out.`
    : "";
  if (view === "rollout") {
    const python = `tracer.attention.rollout(trace${part})[0, ${query}]`;
    return { what: "By rollout over all blocks", python, note: place };
  }
  const mean = view === "mean";
  const heads = map.heads > 1 ? (mean ? `, mean of ${map.heads} heads` : `, head ${view}`) : "";
  return {
    what: `Block ${layer + 1}${heads}`,
    python: `trace.attention(layer=${layer}, ${mean ? "" : `head=${view}, `}query=${query}${part})${mean ? ".mean(1)" : ""}`,
    note: `In Python layers count from 0: block ${layer + 1} is layer=${layer}.${place}`,
  };
}

// Of how many tokens the query may choose, and what each got if all got the same.
function evenShare(map, open) {
  const which = open.length === map.keys ? `all ${map.keys} tokens` : `the ${open.length} open tokens`;
  return open.length > 1 ? `Were ${which} of this row to get the same: ${percent(1 / open.length)} each (▲).` : "";
}
