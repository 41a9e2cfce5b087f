// Links of a text to pages of this app open in the same tab and the same session, and Back leads to the place that was left.

const LINK = "[data-testid=stMain] .stMarkdown a[href]";
const PATIENCE = 20000; // milliseconds in which a page that one comes back to is drawn
const STEADY = 20; // looks in a row at which the place has to be right, since sections above it may still be folded
const main = () => document.querySelector("[data-testid=stMain]");

function followed(event) {
  const link = event.target.closest?.(LINK);
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || (to.pathname === location.pathname && to.hash)) return;
  event.preventDefault();
  event.stopPropagation();
  history.replaceState({ ...history.state, scrolled: main().scrollTop }, "");
  history.pushState({}, "", to);
  dispatchEvent(new PopStateEvent("popstate", { state: {} })); // to Streamlit, one went there in the history
  if (to.pathname === location.pathname) main().scrollTo(0, 0);
}

/** Scrolls to the place that was left, as soon as the page is long enough, unless one scrolls oneself. */
function returned() {
  const { scrolled } = history.state ?? {};
  const [until, path] = [performance.now() + PATIENCE, location.pathname];
  let free = !scrolled;
  let steady = 0;
  const stop = () => (free = true);
  for (const name of ["wheel", "pointerdown", "keydown"]) addEventListener(name, stop, { once: true });
  (function look() {
    const page = main();
    if (free || location.pathname !== path || performance.now() > until) return;
    if (page && page.scrollHeight - page.clientHeight >= scrolled) page.scrollTo({ top: scrolled, behavior: "instant" });
    steady = page && Math.abs(page.scrollTop - scrolled) <= 1 ? steady + 1 : 0;
    if (steady < STEADY) setTimeout(look, 50);
  })();
}

export default function () {
  returned();
  const stops = [hear(document, { click: followed }, true), hear(window, { popstate: returned })];
  return () => stops.forEach((stop) => stop());
}
