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

/** Large type and no sidebar, or as it was before. */
function present(tools, on) {
  document.body.toggleAttribute("data-present", on);
  tools.classList.toggle("presenting", on);
  const button = tools.querySelector(".present");
  button.textContent = on ? "Leave" : "Present";
  button.title = on ? "Back to the page with its sidebar. Key: Escape" : "Large type and no sidebar. Key: P";
  button.setAttribute("aria-keyshortcuts", on ? "Escape" : "P");
  if (on) deepFocus()?.blur(); // keys are the page's now
  dispatchEvent(new Event("resize"));
}

function deepFocus() {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at;
}

export default function ({ data, parentElement }) {
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
  find(".copy").onclick = ({ currentTarget }) => {
    copied(currentTarget, location.href);
  };
  find("#save").ontoggle = ({ newState }) => {
    if (newState === "open") listFound(find(".found"), find(".none"));
  };
  find(".print").onclick = () => {
    find("#save").hidePopover();
    print();
  };
  find(".present").onclick = () => {
    present(tools, !document.body.hasAttribute("data-present"));
  };
  const paper = () => {
    for (const chart of document.querySelectorAll(".js-plotly-plot .main-svg")) { // they shrink to the width of the paper
      chart.setAttribute("viewBox", `0 0 ${chart.getAttribute("width")} ${chart.getAttribute("height")}`);
    }
  };
  const keys = (event) => {
    const on = document.body.hasAttribute("data-present");
    if (event.key === "Escape" && on && !event.defaultPrevented) present(tools, false);
    else if (event.key.toLowerCase() === "p" && !event.repeat && !taken(event)) present(tools, !on);
  };
  parentElement.deaf?.();
  addEventListener("keydown", keys);
  addEventListener("beforeprint", paper);
  parentElement.deaf = () => {
    removeEventListener("keydown", keys);
    removeEventListener("beforeprint", paper);
  };
  return parentElement.deaf;
}
