// The attention map: everything is in the browser, so that pointing at a patch redraws without asking the server.

const SHOWN = 5;
const LISTED = 12;
const DECADES = 3;
const memory = {}; // the choices for each kind of map, while the page is open: also when the visitor comes back

const percent = (weight) => {
  const value = 100 * weight;
  return `${value >= 10 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(2) : value.toPrecision(1)} %`;
};

function unpack(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const { layers, heads, tokens, rollout, jpeg } = header;
  const count = (layers.length * heads + (rollout ? 1 : 0)) * tokens * tokens;
  const start = 4 + length;
  const end = start + 4 * count;
  return {
    ...header,
    weights: new Float32Array(bytes.slice(start, end).buffer),
    colours: bytes.slice(end, end + 768),
    photoBytes: bytes.slice(end + 768, end + 768 + jpeg),
    widthPhoto: header.photo[0],
    heightPhoto: header.photo[1],
  };
}

// One row of the attention matrix: of a head, of the mean over heads, or of the rollout.
function row(map, layer, view, query) {
  const { heads, tokens, weights, layers } = map;
  const at = (matrix) => weights.subarray((matrix * tokens + query) * tokens, (matrix * tokens + query + 1) * tokens);
  if (view === "rollout") return at(layers.length * heads);
  const first = layers.indexOf(layer) * heads;
  if (view !== "mean") return at(first + Number(view));
  const mean = new Float32Array(tokens);
  for (let head = 0; head < heads; head++) at(first + head).forEach((weight, key) => (mean[key] += weight / heads));
  return mean;
}

// 0 to 1 on the colour scale, linear from 0 to the largest weight or over the decades below it.
const position = (weight, most, scale) => {
  if (!(most > 0)) return 0;
  const share = weight / most;
  return scale === "log" ? Math.max(0, 1 + Math.log10(Math.max(share, 1e-30)) / DECADES) : share;
};

function paint(canvas, map, weights, most, scale) {
  const { rows, columns, first, colours } = map;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let patch = 0; patch < rows * columns; patch++) {
    const index = 3 * Math.round(255 * Math.min(1, position(weights[first + patch], most, scale)));
    image.data.set([colours[index], colours[index + 1], colours[index + 2], 255], 4 * patch);
  }
  context.putImageData(image, 0, 0);
}

// The largest weight on a patch: CLS and its like are no pixels, and don't stretch the scale.
const largest = ({ first, rows, columns }, weights) =>
  weights.subarray(first, first + rows * columns).reduce((a, b) => Math.max(a, b), 0);

const isPatch = (map, token) => token >= map.first && token < map.first + map.rows * map.columns;
const cell = (map, token) => [Math.floor((token - map.first) / map.columns), (token - map.first) % map.columns];

function called(map, token) {
  if (!isPatch(map, token)) return map.others.find(([, other]) => other === token)?.[0] ?? `token ${token}`;
  const [r, c] = cell(map, token);
  return `row ${r}, column ${c}`;
}

// What is shown, for a reader and as the call that gives the same numbers in Python.
function inWords(map, { layer, view, query }) {
  if (view === "rollout") {
    const of = map.part && `, part="${map.part}"`;
    return { what: "By rollout over all blocks", python: `tracer.attention.rollout(trace${of})[0, ${query}]` };
  }
  const mean = view === "mean";
  return {
    what: `Block ${layer + 1}, ${mean ? `mean of ${map.heads} heads` : `head ${view}`}`,
    python: `trace.attention(layer=${layer}, ${mean ? "" : `head=${view}, `}query=${query}${map.part && `, part="${map.part}"`})${mean ? ".mean(1)" : ""}`,
  };
}

function choices(fieldset, options, chosen, pick) {
  const box = fieldset.querySelector("div");
  box.replaceChildren(
    ...options.map(([value, text]) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      input.type = "radio";
      input.name = fieldset.dataset.group;
      input.value = value;
      input.checked = String(value) === String(chosen);
      input.onchange = () => pick(value);
      const name = document.createElement("span");
      name.textContent = text;
      label.append(input, name);
      return label;
    }),
  );
  fieldset.hidden = options.length < 2;
}

export default function ({ data, parentElement }) {
  const map = unpack(data);
  const find = (selector) => parentElement.querySelector(selector);
  const all = (selector) => [...parentElement.querySelectorAll(selector)];
  const photo = find(".photo");
  const heat = find(".heat");
  const centre = map.first + Math.floor(map.rows / 2) * map.columns + Math.floor(map.columns / 2);
  const remembered = (memory[[map.part, map.layers, map.heads, map.tokens]] ??= {});
  const first = { layer: map.layers.at(-1), view: map.heads > 1 ? "mean" : "0", scale: "linear", query: centre };
  const state = Object.assign(first, remembered);
  if (!map.layers.includes(state.layer)) state.layer = map.layers[0];
  if (state.view === "rollout" ? !map.rollout : Number(state.view) >= map.heads) state.view = "mean";
  if (state.query >= map.tokens) state.query = centre;
  Object.assign(remembered, state);

  // The photo lies in its own pixels; crop, canvas and the query's frame are placed in shares of it.
  const address = URL.createObjectURL(new Blob([map.photoBytes], { type: "image/jpeg" }));
  find("img").src = address;
  const [left, top, right, bottom] = map.crop;
  const place = (element, x, y, width, height) =>
    Object.assign(element.style, {
      left: `${(100 * x) / map.widthPhoto}%`,
      top: `${(100 * y) / map.heightPhoto}%`,
      width: `${(100 * width) / map.widthPhoto}%`,
      height: `${(100 * height) / map.heightPhoto}%`,
    });
  photo.style.aspectRatio = `${map.widthPhoto} / ${map.heightPhoto}`;
  photo.parentElement.style.setProperty("--ratio", map.widthPhoto / map.heightPhoto);
  for (const element of [heat, find(".frame")]) place(element, left, top, right - left, bottom - top);
  heat.width = map.columns;
  heat.height = map.rows;

  const stops = Array.from({ length: 18 }, (_, i) => `rgb(${map.colours.subarray(45 * i, 45 * i + 3).join(",")})`);
  find(".gradient").style.background = `linear-gradient(to right, ${stops.join(",")})`;

  const multiples = find(".heads");
  multiples.replaceChildren(
    ...Array.from({ length: map.heads }, (_, head) => {
      const button = document.createElement("button");
      button.type = "button";
      const canvas = Object.assign(document.createElement("canvas"), { width: map.columns, height: map.rows });
      canvas.style.aspectRatio = `${right - left} / ${bottom - top}`;
      const name = document.createElement("span");
      button.append(canvas, name);
      button.onclick = () => choose({ view: String(head) });
      return button;
    }),
  );

  function choose(change, spoken = true) {
    Object.assign(remembered, Object.assign(state, change));
    draw();
    const ranked = all(".top li").map((item) => item.textContent);
    if (spoken) find(".live").textContent = `${find(".lead").textContent} ${ranked.join("; ")}`;
  }

  function controls() {
    const blocks = map.layers.map((layer) => [layer, String(layer + 1)]);
    choices(find("[data-group=layer]"), blocks, state.layer, (layer) => choose({ layer }));
    const heads = Array.from({ length: map.heads }, (_, head) => [String(head), String(head)]);
    const views = [...heads, ...(map.heads > 1 ? [["mean", "mean"]] : []), ...(map.rollout ? [["rollout", "rollout"]] : [])];
    choices(find("[data-group=view]"), views, state.view, (view) => choose({ view }));
    const scales = ["linear", "log"].map((name) => [name, name]);
    choices(find("[data-group=scale]"), scales, state.scale, (scale) => choose({ scale }));
  }

  function draw() {
    const weights = row(map, state.layer, state.view, state.query);
    const most = largest(map, weights);
    paint(heat, map, weights, most, state.scale);
    drawQuery();
    drawBar(most);
    drawText(weights);
    drawHeads();
    for (const input of all(".segmented input")) input.checked = String(state[input.name]) === input.value;
  }

  function drawQuery() {
    const box = find(".query");
    const here = isPatch(map, state.query);
    box.hidden = !here;
    const [r, c] = here ? cell(map, state.query) : [0, 0];
    const width = (right - left) / map.columns;
    const height = (bottom - top) / map.rows;
    if (here) place(box, left + c * width, top + r * height, width, height);
    for (const input of all(".position input")) {
      const axis = input.dataset.axis;
      input.max = { row: map.rows, column: map.columns, token: map.tokens }[axis] - 1;
      const value = { row: here ? r : "", column: here ? c : "", token: state.query }[axis];
      if (parentElement.activeElement !== input || value !== "") input.value = value;
    }
  }

  function drawBar(most) {
    const shares = state.scale === "log" ? [0.001, 0.01, 0.1, 1] : [0, 0.25, 0.5, 0.75, 1];
    find(".ticks").replaceChildren(
      ...shares.map((share, index) => {
        const tick = document.createElement("span");
        tick.textContent = (state.scale === "log" && index === 0 ? "≤ " : "") + (share ? percent(share * most) : "0");
        return tick;
      }),
    );
  }

  function drawText(weights) {
    const ranked = [...weights.keys()].sort((a, b) => weights[b] - weights[a]);
    const { what, python } = inWords(map, state);
    find(".lead").textContent = `${what}: ${called(map, state.query)} attends most to`;
    find(".top").replaceChildren(
      ...ranked.slice(0, SHOWN).map((token) => {
        const item = document.createElement("li");
        const name = document.createElement("span");
        name.textContent = called(map, token) + (token === state.query ? " (itself)" : "");
        const weight = document.createElement("b");
        weight.textContent = ` ${percent(weights[token])}`;
        item.append(name, weight);
        item.style.setProperty("--share", weights[token] / weights[ranked[0]]);
        return item;
      }),
    );
    find(".others-title").hidden = map.others.length < 3;
    find(".others").replaceChildren(
      ...map.others.map(([name, token]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(state.query === token));
        const many = map.others.length > 2; // words of a text: a list of choices, each with what it gets
        button.textContent = many ? name : `Use ${name} as the query`;
        button.setAttribute("aria-label", `Use ${name} as the query`);
        const weight = document.createElement("small");
        weight.textContent = many ? percent(weights[token]) : `${name} gets ${percent(weights[token])}`;
        button.append(weight);
        button.onclick = () => choose({ query: token });
        return button;
      }),
    );
    find(".python code").textContent = python;
    const grid = `Photo with ${map.rows} rows and ${map.columns} columns of patches`;
    photo.setAttribute("aria-label", `${grid}. Query: ${called(map, state.query)}. Arrow keys move it.`);
    find("tbody").replaceChildren(
      ...ranked.slice(0, LISTED).map((token, rank) => {
        const line = document.createElement("tr");
        const [r, c] = isPatch(map, token) ? cell(map, token) : [called(map, token), ""];
        for (const text of [rank + 1, token, r, c, percent(weights[token])]) line.insertCell().textContent = text;
        return line;
      }),
    );
  }

  function drawHeads() {
    const layer = state.layer;
    const whole = state.view === "rollout"; // over all blocks: no one block's heads belong to it
    multiples.hidden = find(".heads-title").hidden = whole || map.heads < 2;
    find("[data-group=layer]").disabled = whole;
    const rows = Array.from({ length: map.heads }, (_, head) => row(map, layer, String(head), state.query));
    const most = Math.max(...rows.map((weights) => largest(map, weights)));
    find(".heads-title").textContent = `All heads of block ${layer + 1}, one scale: ${state.scale === "log" ? "up" : "0"} to ${percent(most)}`;
    [...multiples.children].forEach((button, head) => {
      paint(button.firstChild, map, rows[head], most, state.scale);
      button.lastChild.textContent = `head ${head}`;
      button.setAttribute("aria-pressed", String(state.view === String(head)));
    });
  }

  photo.onpointermove = photo.onpointerdown = (event) => {
    const box = heat.getBoundingClientRect();
    const c = Math.floor(((event.clientX - box.left) / box.width) * map.columns);
    const r = Math.floor(((event.clientY - box.top) / box.height) * map.rows);
    if (r < 0 || c < 0 || r >= map.rows || c >= map.columns) return;
    const query = map.first + r * map.columns + c;
    if (query !== state.query) choose({ query }, false);
  };

  photo.onkeydown = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [r, c] = isPatch(map, state.query) ? cell(map, state.query) : [0, 0];
    const moved = (value, by, size) => Math.min(size - 1, Math.max(0, value + by));
    choose({ query: map.first + moved(r, step[0], map.rows) * map.columns + moved(c, step[1], map.columns) });
  };

  for (const input of all(".position input")) {
    input.onchange = () => {
      const value = Math.min(Number(input.max), Math.max(0, Math.round(Number(input.value) || 0)));
      const [r, c] = isPatch(map, state.query) ? cell(map, state.query) : [0, 0];
      const token = (row, column) => map.first + row * map.columns + column;
      choose({ query: { row: token(value, c), column: token(r, value), token: value }[input.dataset.axis] });
    };
  }

  const opacity = find(".opacity input");
  opacity.oninput = () => photo.style.setProperty("--overlay", opacity.value / 100);
  opacity.oninput();
  controls();
  draw();
  return () => URL.revokeObjectURL(address);
}
