// The probabilities of the next token under temperature, top-k and top-p, and the draw of one. Python's
// `tracer.lessons.writing` computes the same; a test compares both.

const ROWS = 12; // bars that are drawn
const NARROW = 0.03; // share of the strip below which a token has no letter there
const sampling = { temperature: 1, k: Infinity, p: 1, u: Math.random() }; // while the page is open

/** Tokens by their numbers, the largest logit first; of equal ones, the first. */
function ranked(logits) {
  return Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
}

/** The softmax of logits over a temperature, kept for the k largest, then for the fewest that have the share p. */
function reshape(logits, order, { temperature, k, p }) {
  const shares = new Float64Array(logits.length);
  if (!temperature) {
    shares[order[0]] = 1;
    return shares;
  }
  const kept = order.slice(0, k);
  for (const token of kept) shares[token] = Math.exp((logits[token] - logits[order[0]]) / temperature);
  let sum = kept.reduce((total, token) => total + shares[token], 0);
  let before = 0;
  for (const token of kept) {
    const share = shares[token] / sum;
    shares[token] = before >= p - 1e-12 ? 0 : share;
    before += share;
  }
  sum = kept.reduce((total, token) => total + shares[token], 0);
  for (const token of kept) shares[token] /= sum;
  return shares;
}

/** The token on which u falls, where tokens lie side by side, the likeliest first. */
function drawToken(order, shares, u) {
  let below = 0;
  let last = order[0];
  for (const token of order) {
    if (!shares[token]) break;
    below += shares[token];
    last = token;
    if (u < below) break;
  }
  return last;
}

const visible = (text) => ({ " ": "␣", "\n": "↵", "\t": "⇥" })[text] ?? text;

export default function ({ data, parentElement, setTriggerValue }) {
  const find = (selector) => parentElement.querySelector(selector);
  const { facts, logits } = unpack(data);
  const order = ranked(logits);
  const plain = reshape(logits, order, { temperature: 1, k: Infinity, p: 1 });
  const nameOf = (token) => visible(facts.names[token] ?? `token ${token}`);
  let drawn = order[0];

  const send = (token) => {
    for (const button of parentElement.querySelectorAll("button")) button.disabled = true;
    setTriggerValue("token", token);
  };

  const rows = order.slice(0, ROWS).map((token) => {
    const [bar, share] = [element("span", "bar", element("span", "now"), element("span", "plain")), element("span", "share")];
    const button = makeButton(() => send(token), "", element("span", "token", nameOf(token)), bar, share);
    button.disabled = !facts.writes;
    bar.lastChild.style.width = `${100 * plain[token] / plain[order[0]]}%`;
    return { token, button, bar, share };
  });
  find(".bars").replaceChildren(...rows.map(({ button }) => element("li", "", button)));

  function show() {
    const shares = reshape(logits, order, sampling);
    drawn = drawToken(order, shares, sampling.u);
    const left = shares.reduce((count, share) => count + (share > 0), 0);
    const top = Math.max(shares[order[0]], plain[order[0]]);
    for (const { token, button, bar, share } of rows) {
      bar.firstChild.style.width = `${100 * shares[token] / top}%`;
      bar.lastChild.style.width = `${100 * plain[token] / top}%`;
      share.textContent = percent(shares[token]);
      button.toggleAttribute("data-out", !shares[token]);
      button.toggleAttribute("data-drawn", token === drawn);
      button.setAttribute("aria-label", `Write ${nameOf(token)}: ${percent(shares[token])}, without settings ${percent(plain[token])}`);
    }
    const strip = order.filter((token) => shares[token]).map((token) => {
      const cell = element("span", "", shares[token] < NARROW ? "" : nameOf(token));
      cell.style.width = `${100 * shares[token]}%`;
      cell.toggleAttribute("data-drawn", token === drawn);
      return cell;
    });
    const needle = element("i");
    needle.style.left = `${100 * sampling.u}%`;
    find(".strip").replaceChildren(...strip, needle);
    const place = `u = ${sampling.u.toFixed(3)}`;
    find(".strip").setAttribute("aria-label", `The tokens side by side, each as wide as its probability. ${place} falls on ${nameOf(drawn)}.`);
    find(".status").textContent = sampling.temperature
      ? `${left} of ${logits.length} tokens can be drawn. A random number from 0 to 1, ${place}, falls on “${nameOf(drawn)}”.`
      : `At temperature 0, the most probable token is taken: “${nameOf(drawn)}”.`;
    find(".write").textContent = `Write “${nameOf(drawn)}”`;
    find(".again").disabled = !facts.writes || !sampling.temperature;
    for (const input of parentElement.querySelectorAll("input")) {
      const value = sampling[input.name];
      const all = input.name === "k" && value >= logits.length;
      input.parentElement.querySelector("output").textContent = all ? `all ${logits.length}` : input.name === "k" ? value : value.toFixed(2);
    }
  }

  for (const input of parentElement.querySelectorAll("input")) {
    if (input.name === "k") input.max = Math.min(facts.most, logits.length);
    const last = Number(input.max);
    input.value = Math.min(sampling[input.name], last);
    input.oninput = () => {
      const value = Number(input.value);
      sampling[input.name] = input.name === "k" && value === last ? Infinity : value;
      show();
    };
  }
  find(".write").disabled = !facts.writes;
  find(".undo").disabled = !facts.undoes;
  find(".write").onclick = () => {
    const token = drawn;
    sampling.u = Math.random();
    send(token);
  };
  find(".again").onclick = () => {
    sampling.u = Math.random();
    show();
  };
  handle(find(".undo"), "click", () => send(-1));
  show();
}
