// A drawing made in Python, with all text escaped. A patch that is pointed at is marked in every drawing that shows it.

const mark = (slot, number) => {
  for (const cell of slot.querySelectorAll("[data-patch]")) cell.classList.toggle("on", cell.dataset.patch === number);
};

export default function ({ data, parentElement }) {
  const slot = parentElement.querySelector(".slot");
  if (slot.markup !== data) slot.innerHTML = slot.markup = data;
  handle(slot, "pointerover pointerleave", (event) => dispatchEvent(new CustomEvent("patch", { detail: event.target.dataset?.patch })));
  return hear(window, { patch: ({ detail }) => mark(slot, detail) });
}
