// The film on a page: what the player does, with the address, the brush, and a way to the step of an equation.

const PLACE = ["beat", "query", "inside"];
/** The height of the stage, which stays as it is while patches are hidden: nobody paints on what changes its size. */
const HIGH = "--stage-high";

/** What a key asks for on a page: the arrows belong to the film, and all that a clicker sends while it is presented. */
const asksOf = (root) => (event) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  const { top, height } = root.getBoundingClientRect();
  if (event.shiftKey || taken(event) || top + height < 0 || top > innerHeight) return null;
  const present = document.body.hasAttribute("data-present");
  const by = (present ? { ...steps, PageDown: 1, PageUp: -1 } : steps)[event.key];
  if (by) return { by };
  const [target] = event.composedPath();
  return present && event.key === " " && !target.closest?.("button") ? { play: true } : null;
};

/** Escape ends hiding, frees what is kept, and closes a block, wherever in the film the focus is, or where nothing has
 *  it. Returns what stops it. */
function escaping(root, close) {
  const pressed = (event) => {
    const ours = !taken(event) || event.composedPath().includes(root);
    const { hiding } = root.film.state;
    const opened = root.film.film.pictures;
    if (event.key !== "Escape" || !ours || !(hiding || opened || root.film.kept())) return;
    event.preventDefault(); // a page that is presented stays so
    if (hiding) root.querySelector(".mode").click();
    else if (opened) close();
    else root.film.keep(null);
  };
  return hear(window, { keydown: pressed }, true);
}

/** The lane that an address names: its number in the first stream, or that of the stream before it. */
function laneOf(film, text) {
  const [, stream = "0", lane] = /^(?:(\d)\.)?(\d{1,5})$/.exec(text ?? "") ?? [];
  return lane !== undefined && Number(lane) < film.streams[stream]?.lanes.length ? { stream: Number(stream), lane: Number(lane) } : null;
}
const laneText = (pinned) => (pinned ? `${pinned.stream ? `${pinned.stream}.` : ""}${pinned.lane}` : null);

/** Whether two photos are one, with the same patches. */
const isSamePhoto = (one, other) =>
  one?.uri === other?.uri && String([one?.crop, one?.rows, one?.columns]) === String([other?.crop, other?.rows, other?.columns]);

/** What the brush needs to know of the photo. */
function brushed({ film, photo }, facts) {
  const picture = () => photo.image.decode().then(() => photo.image);
  return { ...film.photo, facts, bare: true, picture };
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".film");
  const find = (selector) => root.querySelector(selector);
  const { facts, body } = unpack(data);
  const me = (root.me ??= keepPlace({}));
  me.facts = facts;
  const idsOf = (film) => film.beats.map((beat) => beat.id);
  const standing = ({ beat, query }) => [idsOf(me.film).indexOf(beat), laneOf(me.film, query)];
  const beatOf = (step) => me.film.beats.find((beat) => beat.number && beat.steps.includes(step));

  /** Shows what the buttons do at this beat. */
  const label = () => {
    const { film, state } = root.film;
    const beat = film.beats[state.at];
    const inside = Boolean(film.pictures);
    find(".into").hidden = !inside && !beat.number;
    find(".into").innerHTML = inside ? "Back to the film" : "Open <span>this</span> block";
    find(".into").disabled = false;
    find(".into").title = inside ? "Back to the film of the whole run" : "Go through the steps of this block, one by one";
    find(".open").hidden = !film.beats.some((one) => one.shown);
    find(".hide").hidden = inside || !me.film.photo || !facts.brush;
  };
  /** Plays the film of the run, or that of a block; `placeOf` tells what the address says of where it stands. */
  const stage = (film, options, placeOf) => {
    root.film?.end();
    const moved = (now, held) => {
      label();
      me.place.moved(placeOf(now), held);
    };
    player.mount(root, film, { ...options, heard: asksOf(root), paper: "beat", moved });
    label();
  };
  me.mount = (at, pinned, head = -1) => {
    const photo = me.photo?.ready && isSamePhoto(me.photo.facts, me.film.photo) ? me.photo : null; // else it would be gone until it is decoded
    stage(me.film, { photo, at, pinned, head }, ({ at, pinned }) => {
      const beat = at === me.film.beats.length - 1 ? null : idsOf(me.film)[at];
      return { beat, query: laneText(pinned), inside: null };
    });
    me.photo = root.film.photo;
    if (me.photo) me.photo.facts = me.film.photo;
  };
  me.mountBlock = (film, step) => {
    const { state, kept } = root.film;
    const beat = beatOf(step ?? film.beats[0].id);
    const [pinned, head] = [kept(), state.head];
    if (!root.film.film.pictures) me.allHeads = head < 0; // a block shows one head at a time, at first the first
    const own = pinned && (root.film.film.pictures || pinned.stream === beat.stream) ? { stream: 0, lane: pinned.lane } : null;
    const at = Math.max(0, idsOf(film).indexOf(step));
    stage(film, { at, pinned: own, head, thumbs: { film: me.film, photo: me.photo } }, ({ at, pinned: lane }) => {
      const query = lane && beat.stream ? laneText({ stream: beat.stream, lane: lane.lane }) : laneText(lane);
      return { beat: beat.id, query, inside: idsOf(film)[at] };
    });
  };
  me.openBlock = (step) => {
    const beat = beatOf(step);
    if (!beat) return;
    me.wanted = { beat: beat.id, step };
    dispatchEvent(new CustomEvent("block wanted", { detail: { run: me.run, beat: beat.id } }));
  };
  me.closeBlock = (report = true) => {
    const { film, state, kept } = root.film;
    if (!film.pictures) return;
    const beat = beatOf(film.beats[0].id);
    me.wanted = null;
    const head = me.allHeads && state.head === 0 ? -1 : state.head;
    me.mount(me.film.beats.indexOf(beat), kept() && { stream: beat.stream, lane: kept().lane }, head);
    if (report) me.place.moved({ beat: beat.id, inside: null });
  };

  const { inside } = placeInAddress(PLACE);
  if (me.run !== facts.run) {
    me.run = facts.run;
    const before = root.film;
    const last = before && before.film.beats[before.state.at].id;
    me.film = player.readFilm(body);
    const [named, pinned] = standing(placeInAddress(PLACE));
    const kept = before ? idsOf(me.film).indexOf(last) : -1;
    me.mount(named >= 0 ? named : kept >= 0 ? kept : me.film.beats.length - 1, pinned);
    me.wanted = null;
    me.opens = inside;
    document.getElementById("first")?.remove(); // what stood here until now
  }
  handle(find(".open"), "click", () => setTriggerValue("step", root.film.film.beats[root.film.state.at].shown));
  find(".into").onclick = () => {
    if (root.film.film.pictures) return me.closeBlock();
    me.openBlock(me.film.beats[root.film.state.at].steps[0]);
  };

  const hide = (on) => {
    root.film.hide(on);
    if (!on) root.style.removeProperty(HIGH);
    else if (!root.style.getPropertyValue(HIGH)) root.style.setProperty(HIGH, getComputedStyle(root).getPropertyValue(HIGH));
    find(".photo").hidden = find(".hider").hidden = !on;
  };
  if (me.film.photo) {
    layBrush(brushed(me, facts), find, (hidden) => setTriggerValue("hidden", hidden), hide);
    find(".mode").textContent = "Done";
    handle(find(".hide"), "click", () => find(".mode").click());
  } else {
    find(".brush").hidden = true;
    hide(false);
  }
  label();
  const back = (place) => {
    const [at, pinned] = standing(place);
    if (place.inside && beatOf(place.inside)) {
      const here = root.film.film.pictures ? idsOf(root.film.film).indexOf(place.inside) : -1;
      if (here >= 0) root.film.stand(here, pinned && { stream: 0, lane: pinned.lane });
      else me.openBlock(place.inside);
      return label();
    }
    me.closeBlock(false);
    root.film.stand(at < 0 ? me.film.beats.length - 1 : at, pinned);
    label();
  };
  const came = ({ detail }) => {
    if (detail.run !== me.run || detail.beat !== me.wanted?.beat) return;
    const { step } = me.wanted;
    me.wanted = null;
    if (!detail.bytes.length) {
      find(".into").disabled = true;
      find(".into").title = "This block can’t be opened: the file of this run is damaged";
      return;
    }
    me.mountBlock(player.readFilm(detail.bytes), step);
    if (placeInAddress(PLACE).inside !== step) me.place.moved({ beat: detail.beat, inside: step });
  };
  const deaf = hear(window, { "block came": came });
  if (me.opens) me.openBlock(me.opens); // what came already is handed over at once
  me.opens = null;
  const end = listen(parentElement, me, PLACE, back, deaf, escaping(root, me.closeBlock));
  return () => {
    end();
    setTimeout(() => {
      if (!root.isConnected) root.film.end(); // the page was left, and not only drawn anew
    });
  };
}
