// On a phone the sidebar lies over the page: a page that is chosen there closes it.

const NARROW = 768; // pixels: Streamlit's own limit for laying the sidebar over the page

const left = (event) => {
  if (innerWidth > NARROW || !event.target.closest("[data-testid=stSidebarNavLink]")) return;
  setTimeout(() => document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click());
};

export default function () {
  document.addEventListener("click", left);
  return () => document.removeEventListener("click", left);
}
