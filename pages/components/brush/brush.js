// Hiding patches of the photo with a brush. A stroke is drawn here at once; when it ends it goes to the server, and the
// run that comes back is of the photo without these patches.

const QUIET_KEYS = 350; // milliseconds without another key before what was toggled is sent
const PATIENCE = 20000; // milliseconds after which what was sent is given up
const STILL = 3000; // milliseconds after a run has come in which its page is drawn
const TOOLS = [["hide", "brush"], ["show", "eraser"]];
const FILLS = { mean: "mean colour", grey: "grey", blur: "blurred", removed: "removed" };
const LEAST = 24; // pixels of a patch on screen, as WCAG 2.2 asks of a target

const brushing = { on: false, tool: "hide", fill: "mean", past: [], sent: null }; // while the page is open

const isSame = (a, b) => a.size === b.size && [...a].every((patch) => b.has(patch));

/** The patches from one to another in a straight line. */
function between(from, to, columns) {
  const [[r, c], [row, column]] = [cellOf(from, columns), cellOf(to, columns)];
  const [down, right] = [row - r, column - c];
  const steps = Math.max(Math.abs(down), Math.abs(right), 1);
  return Array.from({ length: steps + 1 }, (_, i) => Math.round(r + (down * i) / steps) * columns + Math.round(c + (right * i) / steps));
}

/** Lays the brush over the photo of a map, or tells the one that lies there of a new run; `send` takes what to hide, and
 *  `switched` is called with whether the brush is on. A photo that is `bare` is drawn without what lies around its patches. */
function layBrush(map, find, send, switched = () => {}) {
  const box = find(".brush");
  box.hidden = !map.facts.brush;
  if (box.hidden) {
    find(".photo").classList.remove("hiding");
    return;
  }
  const layer = find(".targets");
  if (layer.grid !== `${map.rows} ${map.columns}`) layer.brush = newBrush(map, find);
  layer.grid = `${map.rows} ${map.columns}`;
  layer.brush.update(map, send, switched);
}

function newBrush(map, find) {
  const [photo, layer, canvas, status] = [".photo", ".targets", ".unhidden", ".painted"].map(find);
  const { rows, columns } = map;
  let brush, send, switched, timer, stroke;
  let held = 0; // until when the photo is kept in its place
  let hidden = new Set();
  let pictures = {};

  const nameOf = (patch) => `patch ${patch + 1}, row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
  const patches = Array.from({ length: rows * columns }, (_, patch) => {
    const button = Object.assign(element("button"), { type: "button", tabIndex: patch ? -1 : 0 });
    button.setAttribute("aria-label", nameOf(patch));
    return button;
  });
  layer.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
  layer.replaceChildren(...patches);

  function draw() {
    patches.forEach((button, patch) => button.setAttribute("aria-pressed", String(hidden.has(patch))));
    find(".undo").disabled = !brushing.past.length;
    find(".clear").disabled = !hidden.size;
    const { width, height } = canvas;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (pictures.photo) {
      const { photo } = pictures;
      const sides = [photo.width, photo.height, photo.width, photo.height];
      context.drawImage(photo, ...brush.area.map((share, side) => share * sides[side]), 0, 0, width, height);
    }
    const filled = pictures[brushing.fill];
    for (const patch of hidden) {
      const [r, c] = cellOf(patch, columns);
      const [left, right] = [c, c + 1].map((at) => Math.round((at * width) / columns));
      const [top, bottom] = [r, r + 1].map((at) => Math.round((at * height) / rows));
      const place = [left, top, right - left, bottom - top];
      if (!filled) context.clearRect(...place);
      else context.drawImage(filled, (c * filled.width) / columns, (r * filled.height) / rows, filled.width / columns, filled.height / rows, ...place);
    }
  }

  function show() {
    const { on } = brushing;
    find(".mode").setAttribute("aria-pressed", String(on));
    for (const part of [".tools", ".undo", ".clear"]) find(part).hidden = !on;
    layer.hidden = canvas.hidden = !on;
    status.classList.toggle("on", on);
    find(".why").textContent = brush.why;
    find(".change").hidden = !on || !brush.answer?.length;
    photo.classList.toggle("hiding", on);
    find(".over").classList.toggle("hiding", on);
    if (on) photo.removeAttribute("tabindex"); // its patches are reached instead
    else photo.tabIndex = 0;
    photo.setAttribute("role", on ? "group" : "application");
    switched(on);
    tell();
    draw();
  }

  function tell() {
    const count = hidden.size === 1 ? "1 patch is" : `${hidden.size} of ${patches.length} patches are`;
    const how = brushing.fill === "removed" ? "removed from the sequence" : "hidden";
    const what = hidden.size ? `${count} ${how}. ` : brushing.on ? "No patch is hidden. " : "";
    const hint = brushing.on && !hidden.size ? "Drag over the photo, or use the arrow keys and the space bar." : "";
    const outcome = brushing.sent ? "The model runs again …" : brush.status;
    status.textContent = brushing.on || hidden.size ? what + (hidden.size || brushing.sent ? outcome : hint) : "";
    find(".change").replaceChildren(
      ...(brush.answer ?? []).map(([name, before, [after, share], arrow]) => layBar(share, `${before} → ${after} ${arrow}`, name)),
    );
  }

  // Keeps the photo in its place on screen while the page above it changes: nobody paints on what moves.
  function hold(milliseconds) {
    const page = document.querySelector("[data-testid=stMain]");
    const place = () => [layer.getBoundingClientRect().top, page.scrollTop];
    let before = place();
    const follow = () => {
      if (!layer.isConnected || !brushing.on || performance.now() > held) {
        held = 0;
        return;
      }
      const [top, scrolled] = place();
      if (scrolled === before[1] && top !== before[0]) page.scrollTop += top - before[0];
      before = place();
      requestAnimationFrame(follow);
    };
    if (!held) requestAnimationFrame(follow);
    held = performance.now() + milliseconds;
  }

  function post() {
    hold(PATIENCE);
    clearTimeout(timer);
    timer = undefined;
    const value = { patches: [...hidden].sort((a, b) => a - b), fill: brushing.fill };
    brushing.sent = { ...value, at: performance.now() };
    send(value);
    show();
  }
  function change(next, now = true) {
    if (isSame(next, hidden)) return;
    brushing.past.push(hidden);
    hidden = next;
    draw();
    clearTimeout(timer);
    if (now) post();
    else timer = setTimeout(post, QUIET_KEYS);
  }
  const toggled = (patch) => {
    const next = new Set(hidden);
    if (!next.delete(patch)) next.add(patch);
    return next;
  };

  // What the run on screen hides, unless a later stroke is drawn or on its way.
  function settle() {
    const [there, { sent }] = [new Set(brush.patches), brushing];
    const arrived = sent && isSame(new Set(sent.patches), there) && (!there.size || sent.fill === brush.fill);
    if (arrived || (sent && performance.now() - sent.at > PATIENCE)) brushing.sent = null;
    if (brushing.sent || stroke || timer) return;
    if (there.size) brushing.fill = brush.fill;
    hidden = there;
    const same = (past) => past && isSame(past, hidden);
    while (same(brushing.past.at(-1))) brushing.past.pop();
  }

  function paint(event) {
    const found = cellUnder(event, layer, rows, columns);
    if (!found) return;
    const patch = found[0] * columns + found[1];
    for (const each of between(stroke.last ?? patch, patch, columns)) {
      if (brushing.tool === "hide") hidden.add(each);
      else hidden.delete(each);
    }
    stroke.last = patch;
    draw();
  }
  layer.onpointerdown = (event) => {
    event.stopPropagation();
    if (!event.isPrimary || event.button) return;
    layer.setPointerCapture(event.pointerId);
    stroke = { before: hidden };
    hidden = new Set(hidden);
    paint(event);
  };
  layer.onpointermove = (event) => {
    event.stopPropagation();
    if (stroke) for (const each of event.getCoalescedEvents?.() ?? [event]) paint(each);
    if (stroke) paint(event);
  };
  layer.onpointerup = layer.onpointercancel = (event) => {
    event.stopPropagation();
    if (!stroke) return;
    const { before } = stroke;
    stroke = undefined;
    const next = hidden;
    hidden = before;
    if (isSame(next, before)) draw();
    else change(next);
  };
  layer.onclick = (event) => {
    event.stopPropagation();
    const patch = patches.indexOf(event.target);
    if (event.detail === 0 && patch >= 0) change(toggled(patch), false); // by a key, or by a screen reader
  };
  layer.onkeydown = (event) => {
    event.stopPropagation();
    const from = patches.indexOf(event.target);
    const [r, c] = cellOf(from, columns);
    const step = ARROWS[event.key] ?? { Home: [0, -c], End: [0, columns - 1 - c] }[event.key];
    if (!step || from < 0) return;
    event.preventDefault();
    const [row, column] = [r + step[0], c + step[1]];
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    patches[from].tabIndex = -1;
    const next = patches[row * columns + column];
    next.tabIndex = 0;
    next.focus();
  };

  find(".mode").onclick = () => {
    brushing.on = !brushing.on;
    show();
  };
  find(".undo").onclick = () => {
    const before = brushing.past.pop();
    if (!before) return;
    hidden = before;
    post();
  };
  handle(find(".clear"), "click", () => change(new Set()));
  function controls() {
    choices(find("[data-group=tool]"), TOOLS, brushing.tool, (tool) => {
      brushing.tool = tool;
    });
    choices(find("[data-group=fill]"), brush.fills.map((fill) => [fill, FILLS[fill]]), brushing.fill, (fill) => {
      brushing.fill = fill;
      if (hidden.size) post();
      else show();
    });
  }

  async function update(map, sender, switcher) {
    [send, switched] = [sender, switcher];
    const [left, top, right, bottom] = map.crop;
    const area = [left / map.photo[0], top / map.photo[1], (right - left) / map.photo[0], (bottom - top) / map.photo[1]];
    brush = { ...map.facts.brush, area };
    const [x, y, wide, high] = map.bare ? [0, 0, 1, 1] : area;
    for (const part of [layer, canvas]) layOver(part, [x, y, wide, high]);
    photo.style.setProperty("--least", `${Math.ceil((LEAST * columns) / wide)}px`);
    Object.assign(canvas, { width: Math.max(right - left, 16 * columns), height: Math.max(bottom - top, 16 * rows) });
    if (held) hold(STILL);
    settle();
    controls();
    show();
    const own = brush;
    const plain = brush.photo ? imageBitmap(brush.photo) : map.picture();
    const fills = Object.entries(brush.pictures).map(async ([fill, bytes]) => [fill, await imageBitmap(bytes)]);
    const drawn = { photo: await plain, ...Object.fromEntries(await Promise.all(fills)) };
    if (own !== brush) return; // another run came meanwhile
    pictures = drawn;
    draw();
  }
  return { update };
}
