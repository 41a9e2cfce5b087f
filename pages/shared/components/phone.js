// On a phone the sidebar lies over the page: it closes when a page is chosen in it, and when the page has a question
// to ask or refuses what was given.

const NARROW = 768; // pixels: Streamlit's own limit for laying the sidebar over the page
const SAID = "[data-testid=stMain] :is([data-testid=stAlertContentError], .st-key-asking)";

const close = () => {
  if (innerWidth > NARROW) return;
  document.querySelector("[data-testid=stSidebar][data-collapsed=false] [data-testid=stSidebarCollapseButton] button")?.click();
};

const left = (event) => event.target.closest("[data-testid=stPageLink-NavLink]") && setTimeout(close);

const appeared = (changes) =>
  changes.some(({ addedNodes }) =>
    [...addedNodes].some((node) => node.matches && (node.matches(SAID) || node.querySelector(SAID))),
  ) && close();

export default function () {
  if (document.querySelector(SAID)) close(); // it was said before this script was there
  const watch = new MutationObserver(appeared);
  watch.observe(document.body, { childList: true, subtree: true });
  document.addEventListener("click", left);
  document.body.dataset.phone = "ready"; // for tests: a click before that is nobody's
  return () => {
    watch.disconnect();
    document.removeEventListener("click", left);
  };
}
