// A button that copies a text.

export default function ({ data, parentElement }) {
  const button = parentElement.querySelector("button");
  button.textContent = data.label;
  button.onclick = () => {
    copied(button, data.text);
  };
}
