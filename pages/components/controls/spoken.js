// What happened, for those who do not see it: a screen reader says it when it changes.

export default function ({ data, parentElement }) {
  const status = parentElement.querySelector("p");
  if (status.textContent !== data) status.textContent = data;
}
