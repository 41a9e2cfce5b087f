// The photo with the map of one row over it: a grey sketch, lit in amber, the brighter the larger the weight. It lies in its own pixels; all else is placed in shares of it.

const LOOKS = [["attention", "Attention"], ["colour", "In colour"], ["patches", "Patches"], ["photo", "Photo"]];
const SMALL = 200; // pixels of a small picture's width

function layPhoto(map, find, state, choose) {
  const photo = find(".photo");
  const heat = find(".heat");
  const [left, top, right, bottom] = map.crop;
  const [width, height] = map.photo;
  const address = imageAddress(map.jpeg);
  find("img").src = address;
  photo.style.aspectRatio = `${width} / ${height}`;
  const place = (part, ...area) => layOver(part, area, [width, height]);
  const cover = find(".cover");
  for (const part of [cover, heat, find(".lines"), find(".cuts")]) place(part, left, top, right - left, bottom - top);
  for (const canvas of [cover, heat]) Object.assign(canvas, { width: map.columns, height: map.rows });
  const [wide, high] = [(right - left) / map.columns, (bottom - top) / map.rows];
  const without = map.tokens.length - map.patches.size;
  const holes = map.unseen.map((patch) => cellOf(patch, map.columns));
  cover.getContext("2d").fillStyle = map.closed;
  for (const [r, c] of holes) cover.getContext("2d").fillRect(c, r, 1, 1);
  find(".strokes").replaceChildren(
    ...holes.filter(([r, c]) => tokenAt(map, r, c) !== null).map(([r, c]) => {
      const stroke = element("div", "stroke");
      place(stroke, left + c * wide, top + r * high, wide, high);
      return stroke;
    }),
  );
  const covered = () => {
    const count = `${map.unseen.length} of ${map.tokens.length} patches were hidden from the ${map.tower}`;
    const here = without ? "no token here, no attention" : "here a mask token, one learned vector, stands for each";
    find(".covered span").textContent = `${count}: ${here}`;
  };
  find(".covered").hidden = !map.unseen.length;
  find(".covered i").style.backgroundColor = map.closed;
  find(".covered i").classList.toggle("stroke", !without);
  covered();

  const at = (event) => {
    const found = cellUnder(event, heat, map.rows, map.columns);
    if (!found) return null;
    const [r, c] = found;
    const query = tokenAt(map, r, c);
    photo.style.cursor = query === null ? "not-allowed" : "";
    if (query === null) find(".covered span").textContent = hasNone(map, r, c);
    else covered();
    return query;
  };
  handle(photo, "pointermove pointerdown", (event) => preview(map, state, choose, at(event)));
  photo.onpointerleave = () => {
    covered();
    preview(map, state, choose, null);
  };
  photo.onclick = (event) => {
    const query = at(event);
    if (query !== null) press(map, state, choose, query);
  };
  photo.onkeydown = (event) => {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    const from = isPatch(map, state.query) ? cell(map, state.query) : [0, 0];
    choose({ query: tokenBeyond(map, from, step) ?? tokenAt(map, ...from) ?? state.query, pinned: true }, true, event.repeat);
  };

  find(".map").style.setProperty("--lit", LIT);
  find(".cuts").style.backgroundSize = `${100 / map.columns}% ${100 / map.rows}%`;
  state.look = "attention";
  choices(find("[data-group=look]"), LOOKS, state.look, (look) => {
    state.look = find(".map").dataset.look = look;
  });
  const small = []; // sketches of the crop for other pictures
  const image = find("img");
  let freed = false;
  const sketch = () => {
    const whole = sketchOf(image, map);
    const [x, y] = [whole.width / width, whole.height / height];
    Object.assign(find(".sketch"), { width: whole.width, height: whole.height }).getContext("2d").drawImage(whole, 0, 0);
    const outside = Object.assign(find(".outside"), { width: whole.width, height: whole.height });
    const crop = { x: left * x, y: top * y, w: (right - left) * x, h: (bottom - top) * y };
    hatchOutside(outside.getContext("2d"), { x: 0, y: 0, w: whole.width, h: whole.height }, crop);
    for (const canvas of small) {
      canvas.getContext("2d").drawImage(whole, crop.x, crop.y, crop.w, crop.h, 0, 0, canvas.width, canvas.height);
    }
  };
  image.decode().then(sketch, (error) => {
    // A picture whose address changes is not decoded either: another map or page came before this one was.
    if (freed || !image.isConnected || image.src !== address || !image.complete) return;
    if (!image.naturalWidth) throw error;
    sketch();
  });

  function draw(cells, open) {
    const weights = onPatches(map, row(map, cells, state.query));
    const most = maximum(weights);
    const closed = (patch) => map.tokens[patch] === null || isClosed(map, cells, state.layer, state.query, map.tokens[patch]);
    glow(heat, map, weights, map.columns, most, state.scale, closed);
    outline(find(".lines"), map.columns, map.rows, levels(weights, most, 1 / open.length, closed));
    drawBar(find(".over .bar"), lit, most, state.scale, 1 / open.length);
    const shut = map.tokens.length - without - open.filter((token) => isPatch(map, token)).length;
    const patches = shut === 1 ? "1 patch is" : `${shut} patches are`;
    grey(find(".over .shut"), `rgb(${SHUT.join(",")})`, shut ? `${patches} closed to this query by ${maskName(map)} that ran` : "");
    const frame = find(".query");
    frame.hidden = !isPatch(map, state.query);
    frame.classList.toggle("pinned", state.pinned);
    if (!frame.hidden) {
      const [r, c] = cell(map, state.query);
      place(frame, left + c * wide, top + r * high, wide, high);
    }
    const hidden = map.unseen.length ? `, ${map.unseen.length} of them hidden from the ${map.tower}` : "";
    const grid = `Photo with ${map.rows} rows and ${map.columns} columns of patches${hidden}`;
    photo.setAttribute("aria-label", `${grid}. Query: ${queryName(map, state)}. Arrow keys move it.`);
  }
  // The sketch of what the model sees, to lie under a canvas of its size.
  function cropped() {
    small.push(makeCanvas(SMALL, Math.round((SMALL * (bottom - top)) / (right - left))));
    return small.at(-1);
  }
  const free = () => {
    freed = true;
  };
  return { draw, cropped, free };
}
