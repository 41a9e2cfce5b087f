// Equations of what is on screen, from the server; a button among them opens its step.

function equations(box, markup, open) {
  if (box.markup !== markup) box.innerHTML = box.markup = markup;
  box.hidden = !markup;
  openSteps(box, open);
}

/** Calls `open` with the step of what is clicked in a box, where that has one. */
function openSteps(box, open) {
  box.onclick = ({ target }) => {
    const step = target.closest("[data-step]")?.dataset.step;
    if (step) open(step);
  };
}
