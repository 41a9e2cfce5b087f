// Where the visitor stands: in the address, in the browser's history, and told to the server, which runs nothing for it.

const QUIET = 120; // milliseconds without another step before it is told

/** A value as Streamlit writes it into an address. */
const written = (value) =>
  encodeURIComponent(value)
    .replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`)
    .replaceAll("%20", "+");

/** The address with that step; all else in it stays as it is. */
function addressOf(step) {
  const others = location.search.slice(1).split("&").filter((part) => part && !part.startsWith("step="));
  return `${location.pathname}?${[...others, `step=${written(step)}`].join("&")}`;
}

const stepInAddress = () => new URLSearchParams(location.search).get("step");

/** Writes steps into the address and tells them, once the picture stands: each step makes an entry in the history, but
 *  while a key is held down only the one at which it is quiet. */
function keeper(me) {
  let timer, owed; // the step that is to be written and told, and whether as an entry of its own
  const write = () => {
    if (!owed || location.pathname !== me.path || stepInAddress() === owed.step) return;
    history[owed.held ? "replaceState" : "pushState"](history.state, "", addressOf(owed.step));
  };
  const tell = () => {
    clearTimeout(timer);
    if (!owed) return;
    write();
    navigator.sendBeacon(new URL(`.${me.facts.told}`, document.baseURI), `${me.facts.token} ${owed.step}`);
    owed = undefined;
  };
  const moved = (step, held) => {
    if (!held) write(); // the one before, which was quick
    owed = { step, held };
    clearTimeout(timer);
    timer = setTimeout(tell, QUIET);
    if (!held) requestAnimationFrame(() => setTimeout(write));
  };
  const forget = () => {
    clearTimeout(timer);
    owed = undefined;
  };
  return { moved, tell, forget };
}

/** Whether a key that is pressed belongs to something else: a box, a slider, a dialogue, a list of Streamlit's. */
function taken(event) {
  const [at] = event.composedPath();
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return true;
  return Boolean(
    at.isContentEditable ||
      at.closest?.(
        "input, textarea, select, dialog, canvas[tabindex], [role=slider], [role=combobox], [role=listbox], [role=menu]," +
          "[role=tablist], [role=grid], [role=radiogroup], [role=dialog]",
      ),
  );
}

const MOVES = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };
