// The attention map: everything is in the browser, so that pointing at a token redraws without asking the server.

const SHOWN = 5;
const PLACE = ["block", "head", "query", "scale"]; // what the address says of it; a query where it is pinned

const memory = {}; // what no address says, for each kind of map, while the page is open

/** What can be looked at: each head by its number, and what has a name. */
const viewsOf = (map) => [...Array(map.heads).keys(), ...(map.heads > 1 ? ["mean"] : []), ...(map.rollout ? ["rollout"] : [])];

/** What is shown at a place; at what the address does not name, or this map lacks, that which tells most. */
function standing(map, { block, head, query, scale }) {
  const known = (choices, text, first) => choices.find((one) => String(one) === text) ?? first;
  const pinned = /^\d+$/.test(query ?? "") && Number(query) < map.queries;
  const state = {
    layer: known(map.choices.map((layer) => layer + 1), block, map.layers.at(-1) + 1) - 1,
    view: String(known(viewsOf(map), head, map.heads > 1 ? "mean" : 0)),
    scale: known(["linear", "log"], scale, map.masks.length && !map.photo ? "log" : "linear"), // the first row of a causal mask has one cell, of weight 1
    query: pinned ? Number(query) : map.start,
    pinned, // whether it stays when the pointer moves
  };
  if (block === null && !has(map, state)) state.view = map.views[0];
  return state;
}

export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  const map = opened(data);
  map.start = telling(map);
  const find = (selector) => parentElement.querySelector(selector);
  find(".live").textContent = ""; // of another model
  const all = (selector) => [...parentElement.querySelectorAll(selector)];
  const me = keepPlace({ facts: map.facts });
  const kept = (memory[[map.part, map.queries, map.keys]] ??= { each: false }); // whether each head has its own scale
  const state = { ...standing(map, placeInAddress(PLACE)), each: kept.each };

  find(".over").hidden = !map.photo;
  find(".tokens").hidden = Boolean(map.photo) && !map.text;
  for (const title of all(".half")) title.hidden = !map.photo || find(".tokens").hidden;
  find(map.photo ? ".below" : ".left").append(find(".tokens"));
  find(".left").style.setProperty("--ratio", map.photo ? map.photo[0] / map.photo[1] : 1);
  const pictures = [];
  if (map.photo) {
    pictures.push(layPhoto(map, find, state, choose));
    layBrush(map, find, (hidden) => setTriggerValue("hidden", hidden));
  }
  if (!find(".tokens").hidden) pictures.push(layMatrix(map, find, state, choose));
  const boxes = numberBoxes(map, all, find(".status"), state, choose);

  // Takes another state; one that was chosen, and not passed over by the pointer, is `spoken` and goes into the address.
  function choose(change, spoken = true, held = false) {
    Object.assign(state, change);
    kept.each = state.each;
    if (spoken) {
      const { layer, view, query, pinned, scale } = state;
      me.place.moved({ block: String(layer + 1), head: view, query: pinned ? String(query) : null, scale }, held);
    }
    show(spoken);
  }
  function show(spoken = false) {
    checks();
    const lines = map.facts.equations[state.view === "rollout" ? "rollout" : state.layer];
    equations(find(".equations"), lines ?? "", (step) => setTriggerValue("step", step));
    find(".waiting").hidden = has(map, state);
    if (!has(map, state)) {
      find(".waiting").textContent = `Fetching ${map.blocks[state.layer]} …`;
      setStateValue("wanted", { layer: state.layer, view: state.view });
      return;
    }
    draw();
    const ranked = all(".top li").map((item) => item.textContent);
    const pin = state.pinned ? ". Pinned" : "";
    if (spoken) find(".live").textContent = `${find(".lead").textContent} ${ranked.join("; ")}${pin}`;
  }

  handle(find(".pin button"), "click", () => press(map, state, choose, state.query));

  const checks = () => {
    for (const input of all(".controls .segmented input")) input.checked = String(state[input.name]) === input.value;
    const blocks = find("[data-group=layer]");
    blocks.disabled = state.view === "rollout"; // which goes over all of them
    blocks.querySelector("legend").textContent = blocks.disabled ? `Block: rollout uses all ${map.choices.length}` : "Block";
    if (blocks.disabled) for (const input of blocks.querySelectorAll("input")) input.checked = false;
    find(".pin button").setAttribute("aria-pressed", String(state.pinned));
    find(".pin span").textContent = state.pinned ? howToFree(map, "click") : "";
  };

  function controls() {
    const blocks = map.choices.map((layer) => [layer, map.blocks[layer].replace("block ", "")]);
    choices(find("[data-group=layer]"), blocks, state.layer, (layer) => choose({ layer }));
    const views = viewsOf(map).map((view) => [String(view), Number.isInteger(view) ? String(view + 1) : view]);
    choices(find("[data-group=view]"), views, state.view, (view) => choose({ view }));
    const scales = ["linear", "log"].map((name) => [name, name]);
    choices(find("[data-group=scale]"), scales, state.scale, (scale) => choose({ scale }));
  }

  const multiples = find(".heads");
  multiples.replaceChildren(
    ...Array.from({ length: map.heads }, (_, head) => {
      const [width, height] = map.photo ? [map.columns, map.rows] : [map.keys, map.queries];
      const canvas = makeCanvas(width, height);
      const [left, top, right, bottom] = map.photo ? map.crop : [0, 0, width, height];
      const picture = element("div", "small", ...(map.photo ? [pictures[0].cropped()] : []), canvas, element("canvas"));
      picture.style.aspectRatio = `${right - left} / ${bottom - top}`;
      return makeButton(() => choose({ view: String(head) }), "", picture, element("span", "", `head ${head + 1}`));
    }),
  );

  // All heads of a block, on one scale or each on its own: the query's row over the photo, or the whole matrix.
  let painted;
  const own = find(".each input");
  handle(own, "change", () => choose({ each: own.checked }));
  function drawHeads() {
    const { layer, scale, each } = state;
    const whole = state.view === "rollout" || map.views.length < map.heads; // no one block's heads belong to it
    multiples.hidden = find(".heads-title").hidden = find(".each").hidden = whole || map.heads < 2;
    own.checked = each;
    [...multiples.children].forEach((button, head) =>
      button.setAttribute("aria-pressed", String(state.view === String(head))),
    );
    const key = [layer, scale, each, map.photo ? state.query : ""].join();
    if (multiples.hidden || key === painted) return;
    painted = key;
    const every = map.views.map((view) => matrix(map, { layer, view }));
    const shown = map.photo ? every.map((cells) => onPatches(map, row(map, cells, state.query))) : every;
    const [ends, from] = [shown.map(maximum), scale === "log" ? "up" : "0"];
    const most = Math.max(...ends);
    const range = each ? `each from ${from === "up" ? "three decades below" : "0 to"} its own largest weight` : `one scale: ${from} to ${percent(most)}`;
    find(".heads-title").textContent = `All heads of ${map.blocks[layer]}, ${range}`;
    [...multiples.children].forEach((button, head) => {
      const place = (at) => (map.photo ? [state.query, map.tokens[at]] : cellOf(at, map.keys));
      const closed = (at) => place(at)[1] === null || isClosed(map, every[head], layer, ...place(at));
      const lay = map.photo ? glow : paint;
      const end = each ? ends[head] : most;
      const [canvas, lines] = [...button.querySelectorAll("canvas")].slice(-2);
      lay(canvas, map, shown[head], map.photo ? map.columns : map.keys, end, scale, closed);
      if (map.photo) outline(lines, map.columns, map.rows, levels(shown[head], end, Infinity, closed, 2));
      button.lastChild.textContent = each ? `head ${head + 1}, to ${percent(ends[head])}` : `head ${head + 1}`;
    });
  }

  function drawText(weights, open) {
    const { lead, python, note } = inWords(map, state);
    const [most, least] = [weights[open[0]], weights[open.at(-1)]]; // the open keys are in the order of their weights
    const none = !(most > 0);
    const even = !none && open.length > 1 && most - least <= 1e-6 * most;
    const instead = none ? "attends to nothing: every weight of this row is 0." : `attends equally to all ${open.length} tokens that it may attend to.`;
    find(".lead").textContent = none || even ? lead.replace("attends most to:", instead) : lead;
    find(".numbers th:last-child").textContent = state.view === "rollout" ? "Share" : "Weight";
    find(".top").replaceChildren(
      ...open.slice(0, none || even ? 0 : SHOWN).map((token) => {
        const name = map.keyNames[token] + (token === state.query && map.queries === map.keys ? " (itself)" : "");
        return layBar(weights[token] / weights[open[0]], percent(weights[token]), ...unbroken(name));
      }),
    );
    const [place, pixels] = ruleOf(map, state.query);
    find(".rule").textContent = place;
    find(".pixels").textContent = pixels;
    find(".python code").textContent = python;
    find(".python span").textContent = note;
    for (const share of all(".share")) share.textContent = shareOf(map, state);
    for (const mark of all(".same")) mark.textContent = map.zero ? "" : evenShare(map, open);
    find(".brightness").hidden = map.zero;
    find(".relative").hidden = none || even;
    if (find(".numbers").open) listAll(weights, open);
  }

  // Every token that the query may look at, and how many it may not.
  function listAll(weights, open) {
    const closed = map.keys - open.length;
    const lines = open.map((token, rank) => [rank + 1, token + 1, map.keyNames[token], percent(weights[token])]);
    if (closed) lines.push(["", "", `${closed} more, closed by ${maskName(map)}`, percent(0)]);
    find("tbody").replaceChildren(
      ...lines.map((values) => element("tr", "", ...values.map((value) => element("td", "", value)))),
    );
  }
  find(".numbers").ontoggle = () => {
    if (has(map, state)) draw();
  };

  let cells, taken;
  function draw() {
    if (taken !== `${state.layer} ${state.view}`) {
      cells = matrix(map, state);
      map.whole = sumsToOne(map, cells);
      map.zero = !(maximum(cells) > 0); // as in a head that a change switched off
      find(".habits").textContent = habits(map, cells, state);
    }
    taken = `${state.layer} ${state.view}`;
    const open = openKeys(map, cells, state);
    for (const picture of pictures) picture.draw(cells, open);
    boxes();
    drawText(row(map, cells, state.query), open);
    tokenButtons(map, find, cells, state, choose);
    drawHeads();
    checks();
  }

  controls();
  show();
  const picture = find(map.photo ? ".photo" : ".grid");
  const back = (place) => {
    Object.assign(state, standing(map, place));
    show();
  };
  // Another picture of the page opens a head: all heads at a glance do.
  const opens = ({ detail }) => {
    if (!map.choices.includes(detail.layer) || Number(detail.view) >= map.heads) return;
    choose(detail);
    find(".map").scrollIntoView({ behavior: "smooth", block: "start" });
  };
  const end = listen(
    parentElement,
    me,
    PLACE,
    back,
    hear(window, { head: opens }),
    presented(picture, (event) => picture.onkeydown(event)),
    escapes(find(".map"), map, state, choose),
  );
  return () => {
    end();
    pictures.forEach((picture) => picture.free?.());
  };
}
