// What every page offers: a link to what is on screen, what can be saved of it, and a way to present it.

const LOCAL = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** The link as a picture that a phone reads; the server draws it, and keeps nothing of it. */
async function drawCode(image, address, path) {
  image.hidden = true;
  try {
    const answer = await fetch(new URL(`.${path}`, document.baseURI), { method: "POST", body: address });
    if (!answer.ok) return;
    image.src = `data:image/svg+xml,${encodeURIComponent(await answer.text())}`;
    image.hidden = false;
  } catch {} // no server, no picture: the link itself is there
}

const NEXT = "[data-testid=stSidebar] [data-testid=stPageLink-NavLink]";

/** The links to the pages, in their order, and where among them this one is. */
function pagesAround() {
  const links = [...document.querySelectorAll(NEXT)];
  const at = links.findIndex((link, place) => place > 0 && new URL(link.href).pathname === location.pathname);
  return [links, Math.max(0, at)]; // the first page’s address is empty, which is that of any page
}

/** Goes to the page after this one, or before it. */
function turn(by) {
  const [links, here] = pagesAround();
  const link = links[(here + by + links.length) % links.length];
  document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
  link?.click();
}

/** Goes on by a screen; where the page ends, to the next one. */
function goOn(by) {
  const main = document.querySelector("[data-testid=stMain]");
  const left = by > 0 ? main.scrollHeight - main.clientHeight - main.scrollTop : main.scrollTop;
  if (left > 24) main.scrollBy({ top: by * Math.min(left, main.clientHeight - 80), behavior: "instant" });
  else turn(by);
}

/** Large type and no sidebar, or as it was before. */
function present(tools, on) {
  document.body.toggleAttribute("data-present", on);
  tools.classList.toggle("presenting", on);
  const button = tools.querySelector(".present");
  button.textContent = on ? "Leave" : "Present";
  button.title = on ? "Back to the page with its sidebar. Key: Escape" : "Large type and no sidebar. Key: P";
  button.setAttribute("aria-keyshortcuts", on ? "Escape" : "P");
  const [links, here] = pagesAround();
  for (const name of [".before", ".after"]) tools.querySelector(name).hidden = !on;
  tools.querySelector(".to").textContent = links[(here + 1) % links.length]?.querySelector("[data-testid=stMarkdownContainer]")?.textContent ?? "Next page";
  if (on) deepFocus()?.blur(); // keys are the page's now
  dispatchEvent(new Event("resize"));
}

function deepFocus() {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at;
}

export default function ({ data, parentElement, setStateValue }) {
  const tools = parentElement.querySelector(".tools");
  const find = (selector) => tools.querySelector(selector);
  present(tools, document.body.hasAttribute("data-present"));

  find("#link").ontoggle = ({ newState }) => {
    if (newState !== "open") return;
    const address = location.href;
    find(".address").textContent = address;
    const away = LOCAL.has(location.hostname) ? " Other devices can’t reach this address: it works on this machine only." : "";
    find(".lacks").textContent = `${data.lacks}${away}`.trim();
    find(".lacks").hidden = !find(".lacks").textContent;
    drawCode(find(".code"), address, data.code);
  };
  handle(find(".copy"), "click", ({ currentTarget }) => copied(currentTarget, location.href));
  find("#save").ontoggle = ({ newState }) => {
    if (newState === "open") listFound(find(".found"), find(".none"));
  };
  find(".print").onclick = () => {
    find("#save").hidePopover();
    print();
  };
  const search = (parentElement.search ??= startSearch(parentElement));
  takeSearch(search, data.search, (name, value) => setStateValue(name, value));
  const toggle = (on) => {
    present(tools, on);
    if (on) document.documentElement.requestFullscreen?.().catch(() => {}); // refused: it is large all the same
    else if (document.fullscreenElement) document.exitFullscreen();
  };
  handle(find(".present"), "click", () => toggle(!document.body.hasAttribute("data-present")));
  handle(find(".before"), "click", () => turn(-1));
  handle(find(".after"), "click", () => turn(1));
  const paper = () => {
    for (const chart of document.querySelectorAll(".js-plotly-plot .main-svg")) { // they shrink to the width of the paper
      chart.setAttribute("viewBox", `0 0 ${chart.getAttribute("width")} ${chart.getAttribute("height")}`);
    }
  };
  const keys = (event) => {
    const on = document.body.hasAttribute("data-present");
    const key = event.key.toLowerCase();
    const by = { pagedown: 1, pageup: -1 }[key];
    if (event.key === "Escape" && on && !event.defaultPrevented) toggle(false);
    else if (taken(event)) return;
    else if (key === "/") {
      event.preventDefault();
      search.open();
    } else if (key === "p" && !event.repeat) toggle(!on);
    else if (key === "n" && on && !event.repeat) turn(event.shiftKey ? -1 : 1);
    else if (by && on) setTimeout(() => event.defaultPrevented || goOn(by)); // after what the page does with it
  };
  const left = () => {
    if (!document.fullscreenElement && document.body.hasAttribute("data-present")) present(tools, false);
  };
  parentElement.deaf?.();
  return (parentElement.deaf = hear(window, { keydown: keys, beforeprint: paper, fullscreenchange: left }));
}
