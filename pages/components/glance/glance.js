// A first look at attention: one map, over the photo and the words, that follows the pointer without any server.

export default function ({ data, parentElement, setTriggerValue }) {
  const map = unpack(data);
  map.start = telling(map);
  const find = (selector) => parentElement.querySelector(selector);
  const me = { facts: map.facts, path: location.pathname };
  me.place = keeper(me);
  const standing = ({ query }) => {
    const pinned = /^\d+$/.test(query ?? "") && Number(query) < map.queries;
    return { query: pinned ? Number(query) : map.start, pinned };
  };
  const state = { layer: map.layers[0], view: "mean", scale: "linear", ...standing(placeInAddress(["query"])) };
  const [photo, words] = [Boolean(map.photo), map.words.length > 0];
  find(".over").hidden = !photo;
  find(".sentence").hidden = !words;
  if (photo) find(".map").style.setProperty("--ratio", map.photo[0] / map.photo[1]);
  const pictures = [
    ...(photo ? [layPhoto(map, find, state, choose)] : []),
    ...(words ? [laySentence(map, find, state, choose)] : []),
  ];
  if (photo) layBrush(map, find, (hidden) => setTriggerValue("hidden", hidden));
  const cells = matrix(map, state);

  function choose(change, meant = true, held = false) {
    Object.assign(state, change);
    if (meant) me.place.moved({ query: state.pinned ? String(state.query) : null }, held);
    draw();
  }

  function draw() {
    const open = openKeys(map, cells, state);
    for (const picture of pictures) picture.draw(cells, open);
    const weights = row(map, cells, state.query);
    const [most] = open;
    const name = map.names[state.query];
    find(".lead").textContent =
      `${name[0].toUpperCase()}${name.slice(1)} attends most to ${map.names[most]}${most === state.query ? ", itself" : ""}: ` +
      `${percent(weights[most])}.`;
    const what = photo && words ? "patch or a word" : photo ? "patch" : "place in the text";
    const cls = map.names[state.query] === "CLS" ? " CLS is an extra token that belongs to no patch." : "";
    const heads = map.heads > 1 ? `, mean of its ${map.heads} heads` : "";
    find("#hint").textContent = state.pinned
      ? howToFree(map, "tap")
      : `${photo ? "Brighter" : "Stronger colour"} = more attention. Point at a ${what} to see where it looks. ` +
        `Block ${map.layers[0] + 1}${heads}.${cls}`;
  }
  draw();
  const stood = () => document.getElementById("first")?.remove(); // what stood here until now
  photo ? pictures[0].shown.then(stood, stood) : stood();
  const back = (place) => {
    Object.assign(state, standing(place));
    draw();
  };
  const end = listen(parentElement, me, ["query"], back, escapes(find(".map"), map, state, choose));
  return () => {
    end();
    pictures.forEach((picture) => picture.free?.());
  };
}
