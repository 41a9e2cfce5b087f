// The strip of equations on a page of its own.

export default function ({ data, parentElement, setTriggerValue }) {
  equations(parentElement.querySelector(".equations"), data, (step) => setTriggerValue("step", step));
}
