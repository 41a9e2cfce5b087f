// The pipeline's markup comes from Python, with all text escaped; a click on a step tells Python which. The lines are laid
// here, where the boxes have their sizes.

const NARROW = 640; // pixels of a phone, which shows titles, and the first stretch of a way that has few
const FEW = 3;
const HEAD = 7; // pixels of an arrow's head, beside what the line is wide

// Lays the lines of a circuit: corners are (lane, rank), and what lies between two ranks is a share of the gap there.
function wire(circuit) {
  const whole = circuit.getBoundingClientRect();
  if (!whole.width) return; // folded
  const boxes = new Map();
  const ranks = [];
  for (const cell of circuit.querySelectorAll(".cell")) {
    const box = cell.firstElementChild.getBoundingClientRect();
    const [left, right, top, bottom] = [box.left - whole.left, box.right - whole.left, box.top - whole.top, box.bottom - whole.top];
    boxes.set(cell.dataset.node, { left, right, top, bottom, middle: (top + bottom) / 2 });
    const rank = (ranks[cell.dataset.rank] ??= { top, bottom });
    rank.top = Math.min(rank.top, top);
    rank.bottom = Math.max(rank.bottom, bottom);
  }
  const lanes = Number(circuit.dataset.lanes);
  const beyond = parseFloat(getComputedStyle(circuit).paddingRight);
  const [lane, track] = [(whole.width - beyond) / lanes, beyond / circuit.style.getPropertyValue("--beyond")];
  const x = (at) => (at < lanes ? (at + 0.5) * lane : lanes * lane + (at - lanes + 0.5) * track);
  const y = (at) => {
    const above = Math.floor(at);
    const share = at - above;
    return share ? ranks[above].bottom + share * (ranks[above + 1].top - ranks[above].bottom) : (ranks[above].top + ranks[above].bottom) / 2;
  };
  const drawn = JSON.parse(circuit.dataset.wires).flatMap(({ from, to, by, wide }) => {
    const [source, target] = [boxes.get(from), boxes.get(to)];
    const points = by.map(([at, rank]) => [x(at), y(rank)]);
    const last = points.length - 1;
    points[0][1] = source.bottom;
    const sideways = by[last][1] === by[last - 1][1];
    const head = HEAD + wide / 2;
    const [endX, endY] = sideways
      ? [points[last - 1][0] > target.right ? target.right : target.left, target.middle]
      : [points[last][0], target.top];
    if (sideways) points[last - 1][1] = endY;
    const back = sideways ? Math.sign(points[last - 1][0] - endX) : 0;
    points[last] = [endX + back * head, sideways ? endY : endY - head];
    const line = shape("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, "stroke-width": wide });
    const side = head * 0.62;
    const corners = sideways
      ? [[endX, endY], [endX + back * head, endY - side], [endX + back * head, endY + side]]
      : [[endX, endY], [endX - side, endY - head], [endX + side, endY - head]];
    return [line, shape("polygon", { points: corners.map((corner) => corner.join(",")).join(" ") })];
  });
  const svg = circuit.querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${whole.width} ${whole.height}`); // on paper all is smaller, and nothing is laid anew
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren(...drawn);
}

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".slot");
  if (box.markup !== data) {
    box.innerHTML = box.markup = data;
    if (innerWidth < NARROW) {
      const shown = box.querySelectorAll("details").length > FEW ? 0 : 1;
      [...box.querySelectorAll(".stretch")].slice(shown).forEach((stretch) => (stretch.open = false));
    }
  }
  openSteps(box, (step) => setTriggerValue("step", step));
  const watch = new ResizeObserver((changes) => changes.forEach(({ target }) => wire(target)));
  for (const circuit of box.querySelectorAll(".circuit")) watch.observe(circuit);
  return () => watch.disconnect();
}
