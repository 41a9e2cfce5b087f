// The film on a page: what the player does, with the address, the brush, and a way to the step of an equation.

const PLACE = ["beat", "query"];
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

/** Escape ends hiding, and frees what is kept, wherever in the film the focus is, or where nothing has it. Returns what
 *  stops it. */
function escaping(root) {
  const pressed = (event) => {
    const ours = !taken(event) || event.composedPath().includes(root);
    const { hiding } = root.film.state;
    if (event.key !== "Escape" || !ours || !(hiding || root.film.kept())) return;
    event.preventDefault(); // a page that is presented stays so
    if (hiding) root.querySelector(".mode").click();
    else root.film.keep(null);
  };
  addEventListener("keydown", pressed, true);
  return () => removeEventListener("keydown", pressed, true);
}

/** The lane that an address names: its number in the first stream, or that of the stream before it. */
function laneOf(film, text) {
  const [, stream = "0", lane] = /^(?:(\d)\.)?(\d{1,5})$/.exec(text ?? "") ?? [];
  return lane !== undefined && Number(lane) < film.streams[stream]?.lanes.length ? { stream: Number(stream), lane: Number(lane) } : null;
}
const laneText = (pinned) => (pinned ? `${pinned.stream ? `${pinned.stream}.` : ""}${pinned.lane}` : null);

/** What the brush needs to know of the photo. */
function brushed({ film, photo }, facts) {
  const { rows, columns, whole, box } = film.photo;
  const [left, top, width, height] = box;
  const picture = () => photo.image.decode().then(() => photo.image);
  return { facts, rows, columns, photo: whole, crop: [left, top, left + width, top + height], bare: true, picture };
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".film");
  const find = (selector) => root.querySelector(selector);
  const [facts, below] = headed(data);
  const me = (root.me ??= { path: location.pathname });
  me.facts = facts;
  me.place ??= keeper(me);
  const ids = () => me.film.beats.map((beat) => beat.id);
  const standing = ({ beat, query }) => [ids().indexOf(beat), laneOf(me.film, query)];
  if (me.run !== facts.run) {
    me.run = facts.run;
    me.film = player.unpack(data.subarray(below));
    const before = root.film;
    before?.end();
    const [named, pinned] = standing(placeInAddress(PLACE));
    const kept = before ? ids().indexOf(before.film.beats[before.state.at].id) : -1;
    const at = named >= 0 ? named : kept >= 0 ? kept : me.film.beats.length - 1;
    player.mount(root, me.film, {
      at,
      pinned,
      heard: asksOf(root),
      moved: ({ at, pinned }, held) => {
        const beat = at === me.film.beats.length - 1 ? null : ids()[at];
        me.place.moved({ beat, query: laneText(pinned) }, held);
      },
    });
    document.getElementById("first")?.remove(); // what stood here until now
  }
  find(".open").onclick = () => {
    setTriggerValue("step", me.film.beats[root.film.state.at].shown);
  };
  find(".open").hidden = !me.film.beats.some((beat) => beat.shown);

  const hide = (on) => {
    root.film.hide(on);
    if (!on) root.style.removeProperty(HIGH);
    else if (!root.style.getPropertyValue(HIGH)) root.style.setProperty(HIGH, getComputedStyle(root).getPropertyValue(HIGH));
    find(".photo").hidden = find(".hider").hidden = !on;
  };
  if (me.film.photo) {
    layBrush(brushed(root.film, facts), find, (hidden) => setTriggerValue("hidden", hidden), hide);
    find(".mode").textContent = "Done";
    find(".hide").hidden = !facts.brush;
    find(".hide").onclick = () => {
      find(".mode").click();
    };
  } else {
    find(".hide").hidden = find(".brush").hidden = true;
    hide(false);
  }
  const back = (place) => {
    const [at, pinned] = standing(place);
    root.film.stand(at < 0 ? me.film.beats.length - 1 : at, pinned);
  };
  const deaf = listen(parentElement, me, PLACE, back, escaping(root));
  return () => {
    deaf();
    setTimeout(() => {
      if (!root.isConnected) root.film.end(); // the page was left, and not only drawn anew
    });
  };
}
