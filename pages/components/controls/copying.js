// Copies a text. Browsers give the clipboard to https and localhost only, so elsewhere a hidden text field does it.

function bySelection(text) {
  const field = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("refused");
}

const SAID = 1500; // milliseconds for which a button says what it did

/** Puts a text on the clipboard, and says so on the button that was pressed. */
async function copied(button, text) {
  const label = (button.label ??= button.textContent);
  try {
    await (navigator.clipboard ? navigator.clipboard.writeText(text) : bySelection(text));
    button.textContent = "Copied";
  } catch {
    button.textContent = "Could not copy";
  }
  setTimeout(() => (button.textContent = label), SAID);
}
