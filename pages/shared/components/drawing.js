// A drawing made in Python, with all text escaped.

export default function ({ data, parentElement }) {
  const slot = parentElement.querySelector(".slot");
  if (slot.markup !== data) slot.innerHTML = slot.markup = data;
}
