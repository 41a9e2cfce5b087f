// Where the visitor stands: in the address, in the browser's history, and reported to the server, which runs nothing for it.

const QUIET = 120; // milliseconds without another move before it is reported

/** A value as Streamlit writes it into an address. */
const written = (value) =>
  encodeURIComponent(value)
    .replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`)
    .replaceAll("%20", "+");

/** The place that the address names, by the names of its parts; null for a part that it does not name. */
const placeInAddress = (names) => {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, query.get(name)]));
};

const pairs = (place) =>
  Object.entries(place)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name}=${written(value)}`);

/** The address with that place; all else in it stays as it is. */
function addressOf(place) {
  const others = location.search.slice(1).split("&").filter((part) => part && !(part.split("=")[0] in place));
  const query = [...others, ...pairs(place)].join("&");
  return location.pathname + (query && `?${query}`);
}

/** Gives `me`, which has the facts of who listens, the path of its page and a `place`. That writes places into the address
 *  and reports them, once the picture stands: each makes an entry in the history, but while a key is held down only the
 *  one at which it is quiet. */
function keepPlace(me) {
  let timer, owed; // the place that is to be written and reported, and whether as an entry of its own
  const same = (place) => Object.entries(placeInAddress(Object.keys(place))).every(([name, value]) => value === place[name]);
  const write = () => {
    if (!owed || location.pathname !== me.path || same(owed.place)) return;
    history[owed.held ? "replaceState" : "pushState"](history.state, "", addressOf(owed.place));
  };
  const report = () => {
    clearTimeout(timer);
    if (!owed) return;
    write();
    const { endpoint, token, page } = me.facts;
    const query = Object.entries(owed.place).map(([name, value]) => `${name}=${written(value ?? "")}`); // "" where it is gone
    navigator.sendBeacon(new URL(`.${endpoint}`, document.baseURI), `${token} ${page}?${query.join("&")}`);
    owed = undefined;
  };
  const moved = (place, held) => {
    if (!held) write(); // the one before, which was quick
    owed = { place, held };
    clearTimeout(timer);
    timer = setTimeout(report, QUIET);
    if (!held) requestAnimationFrame(() => setTimeout(write));
  };
  const forget = () => {
    clearTimeout(timer);
    owed = undefined;
  };
  return Object.assign(me, { path: location.pathname, place: { moved, report, forget } });
}

/** Hears what moves the visitor elsewhere: `back(place)` is called when the browser's history brings another place of
 *  this page back. Returns what stops it. */
function hearing(me, names, back) {
  const { report, forget } = me.place;
  const popped = () => {
    if (location.pathname !== me.path) return;
    forget();
    back(placeInAddress(names));
  };
  const stops = [hear(window, { popstate: popped, pagehide: report }), hear(window, { pointerdown: report }, true)];
  return () => stops.forEach((stop) => stop());
}

/** Listens on behalf of the picture that is drawn in `box`, in place of the picture before it. `back` is called as above;
 *  `stops` end whatever else the picture listens to. Returns what ends it all, once the place is reported. */
function listen(box, me, names, back, ...stops) {
  box.deaf?.();
  stops.push(hearing(me, names, back));
  box.deaf = () => stops.forEach((stop) => stop());
  return () => {
    me.place.report();
    box.deaf();
  };
}
