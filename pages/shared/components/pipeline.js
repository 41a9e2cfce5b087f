// The pipeline's markup comes from Python, with all text escaped; a click on a step tells Python which.

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".slot");
  if (box.markup !== data) {
    box.markup = data;
    box.innerHTML = data;
  }
  box.onclick = (event) => {
    const step = event.target.closest("[data-step]")?.dataset.step;
    if (step) setTriggerValue("step", step);
  };
}
