// On a phone the sidebar lies over the page: it closes when a page is chosen in it, and when the page has a question
// to ask or refuses what was given.

const NARROW = 768; // pixels: Streamlit's own limit for laying the sidebar over the page
const LINK = "[data-testid=stPageLink-NavLink]";
const MESSAGES = "[data-testid=stMain] :is([data-testid=stAlertContentError], .st-key-asking)";

const close = () => {
  if (innerWidth > NARROW) return;
  document.querySelector("[data-testid=stSidebar][data-collapsed=false] [data-testid=stSidebarCollapseButton] button")?.click();
};

const left = (event) => event.target.closest(LINK) && setTimeout(close);

// Where a text is being typed, a link to a page waits until the text is taken. A tap does both in one moment, and
// Streamlit would forget the link.
const TAKEN = 250; // milliseconds
let typing = false;

const touched = (event) => {
  typing = event.target.closest(LINK) && document.activeElement?.matches("textarea, input");
  if (typing) document.activeElement.blur();
};

const followed = (event) => {
  const link = typing && event.target.closest(LINK);
  typing = false;
  if (!link) return;
  event.stopPropagation();
  event.preventDefault();
  setTimeout(() => link.click(), TAKEN);
};

const appeared = (changes) =>
  changes.some(({ addedNodes }) =>
    [...addedNodes].some((node) => node.matches && (node.matches(MESSAGES) || node.querySelector(MESSAGES))),
  ) && close();

export default function () {
  if (document.querySelector(MESSAGES)) close(); // one was there before this script ran
  const watch = new MutationObserver(appeared);
  watch.observe(document.body, { childList: true, subtree: true });
  const stops = [hear(document, { click: left }), hear(document, { pointerdown: touched, click: followed }, true)];
  document.body.dataset.phone = "ready"; // for tests: a click before that is nobody's
  return () => {
    watch.disconnect();
    stops.forEach((stop) => stop());
  };
}
