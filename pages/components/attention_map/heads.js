// All heads at a glance: the table comes from Python, with all text escaped; a click opens the head in the map above,
// or asks the server for it.

export default function ({ data, parentElement, setTriggerValue }) {
  const slot = parentElement.querySelector(".slot");
  if (slot.markup !== data) slot.innerHTML = slot.markup = data;
  slot.onclick = (event) => {
    const cell = event.target.closest("[data-head]");
    if (!cell) return;
    for (const pressed of slot.querySelectorAll("[aria-pressed]")) pressed.removeAttribute("aria-pressed");
    cell.setAttribute("aria-pressed", "true");
    const { layer, head } = cell.dataset;
    if (cell.closest("[data-asks]")) return setTriggerValue("head", `${layer}.${head}`);
    dispatchEvent(new CustomEvent("head", { detail: { layer: Number(layer), view: head } }));
  };
}
