// What happened, for those who do not see it: a screen reader says it when it changes.

export default function ({ data, parentElement }) {
  const said = parentElement.querySelector("p");
  if (said.textContent !== data) said.textContent = data;
}
