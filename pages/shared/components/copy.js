// Copies a text. Browsers give the clipboard to https and localhost only, so elsewhere a hidden text field does it.

function copyBySelection(text) {
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done ? Promise.resolve() : Promise.reject(new Error("refused"));
}

export default function ({ data, parentElement }) {
  const button = parentElement.querySelector("button");
  button.textContent = data.label;
  button.onclick = async () => {
    try {
      await (navigator.clipboard ? navigator.clipboard.writeText(data.text) : copyBySelection(data.text));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Could not copy";
    }
    setTimeout(() => (button.textContent = data.label), 1500);
  };
}
