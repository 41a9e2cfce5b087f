// The bar at the bottom of a narrow screen: the pages, one's own photo or text, and all else there is to choose. On any
// screen a photo may be dropped on the page or pasted.

const LINKS = `${SIDEBAR} [data-testid=stPageLink-NavLink]`;

const item = (kind, icon, label, press) => {
  const made = element(kind, "", Object.assign(element("i", "", icon), { ariaHidden: "true" }), label);
  handle(made, "click", press);
  return made;
};

// A page is chosen by the sidebar's own link to it, which knows the model and the input.
const toPage = ({ title, icon, address, here }) => {
  const link = item("a", icon, title, (event) => {
    const own = [...document.querySelectorAll(LINKS)].find((other) => other.textContent.endsWith(title));
    if (!own) return;
    event.preventDefault();
    own.click();
  });
  link.href = address;
  if (here) link.ariaCurrent = "page";
  return link;
};

const files = (event) => [...(event.clipboardData ?? event.dataTransfer)?.files ?? []];

function pasted(event) {
  const [file] = files(event);
  if (!file) return;
  event.preventDefault();
  hand(file);
}
const dragged = (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault();
function dropped(event) {
  if (event.defaultPrevented || !files(event).length) return; // on the box for files itself
  event.preventDefault();
  hand(files(event)[0]);
}

export default function ({ data, parentElement }) {
  const [nav, { pages, photo, text }] = [parentElement.querySelector("nav"), data];
  const own = photo
    ? item("button", "add_a_photo", "Photo", pickPhoto)
    : text && item("button", "edit", "Text", writeText);
  if (own) own.className = "own";
  const contents = JSON.stringify(data);
  if (nav.contents !== contents) { // else what is tapped at this moment would be replaced, and the tap lost
    nav.contents = contents;
    nav.replaceChildren(...[...pages.map(toPage), own, item("button", "menu", "More", unfold)].filter(Boolean));
  }
  const lists = document.querySelectorAll(`${SIDEBAR} [class*="st-key-pages"]`);
  lists.forEach((list, number) => {
    list.role = "navigation";
    list.ariaLabel = number ? "Lessons" : "Pages";
  });
  return hear(document, { paste: pasted, dragover: dragged, drop: dropped });
}
