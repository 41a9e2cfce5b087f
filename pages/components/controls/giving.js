// The one way in for what a visitor gives: the box for files in the sidebar, which has the bounds, and the box for texts.

const SIDEBAR = "[data-testid=stSidebar]";
const uploader = () => document.querySelector(`${SIDEBAR} [data-testid=stFileUploader] input[type=file]`);
const textBox = () => document.querySelector(`${SIDEBAR} textarea`);
const folded = () => document.querySelector(`${SIDEBAR}[aria-expanded=false], ${SIDEBAR}[data-collapsed=true]`);
const unfold = () => folded() && document.querySelector("[data-testid=stExpandSidebarButton]")?.click();

// Hands a file over as if it had been chosen there.
function hand(file) {
  const input = uploader();
  if (!file || !input) return;
  const files = new DataTransfer();
  files.items.add(file);
  input.files = files.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

// Asks for a photo; a phone offers its camera too.
let asked;
function pickPhoto() {
  asked = Object.assign(document.createElement("input"), { type: "file", accept: "image/*" });
  handle(asked, "change", () => hand(asked.files[0]));
  asked.click();
}

function writeText() {
  unfold();
  setTimeout(() => textBox()?.focus(), 300); // the sidebar slides in
}
