// What is looked at: which token, through which head, on which picture; as buttons, lists, and one line in words.

import { element, makeRadio } from "../../scripts/dom.js";
import { maximum, ramp } from "../../scripts/heatmap.js";
import { measured, rgb, shade } from "./stage/colours.js";
import { mostAdded } from "./stage/stream.js";
import { headOf } from "./stage/tensors.js";
import { kindOf, rowOf } from "./film.js";
import { decimals, percent } from "../../scripts/numbers.js";

const LANES = 400; // lanes that a list offers at most
const LOOKS = { attention: "Attention", rollout: "Rollout", patches: "Patches", photo: "Photo" };
const MEASURES = { like: "likeness", change: "change" };

// Knows what is looked at in a film: `state` has the beat, the lanes that are pointed at and kept, and the head.
export function eyeOf(film, state) {
  // The lane that is looked at in a stream: pointed at, kept by a click, or the one that the film is about.
  const focusOf = (stream) => {
    if (state.pointed?.stream === stream) return state.pointed.lane;
    const beat = film.beats[state.at];
    return state.pinned[stream] ?? (beat.stream === stream ? beat.focus : film.streams[stream].focus);
  };

  // The attention that is on the photo and the text: of this beat, or of the last block before it.
  const lookAt = (stream) => {
    for (let at = state.at; at >= 0; at--) {
      const beat = film.beats[at];
      if (beat.look !== null && beat.stream === stream && film.looks[beat.look].from === stream) return film.looks[beat.look];
      if (beat.kind === "return" && beat.stream === stream) return null;
    }
    return null;
  };
  const row = (look, source) => rowOf(look, film.streams[source], focusOf(look.stream), state.head);
  // For each lane the lane that has the largest weight of its token, null where there is none, or none above all others;
  // null where a film holds the weights of one token alone.
  const kept = new Map();
  const strongest = (look, source) => {
    if (!look || look.queries.length < 2) return null;
    const key = `${film.looks.indexOf(look)} ${state.head}`;
    if (!kept.has(key)) {
      const lanes = film.streams[look.stream].lanes.map((_, lane) => {
        const weights = rowOf(look, film.streams[source], lane, state.head);
        if (!weights || ["nothing", "even"].includes(kindOf(look, lane, state.head))) return null;
        return weights.indexOf(maximum(weights));
      });
      kept.set(key, lanes);
    }
    return kept.get(key);
  };
  // The stream of the beat on stage: an answer that has none is that of the stream which is read; -1 without any.
  const streamNow = () => {
    const beat = film.beats[state.at];
    return beat.stream ?? (beat.kind === "answer" ? film.streams.findIndex((one) => one.read !== null) : -1);
  };
  // The attention whose threads are drawn: of this beat, or of the last block of its stream, to whatever stream that looks.
  const drawn = () => {
    const own = film.beats.slice(0, state.at + 1).filter((beat) => beat.stream === streamNow());
    const last = own.findLast((beat) => beat.look !== null || beat.kind === "return");
    return last?.look == null ? null : film.looks[last.look];
  };
  const nowAt = (stream) => {
    const now = drawn();
    return now?.from === stream ? now : lookAt(stream);
  };
  const rowAt = (stream) => {
    const look = nowAt(stream);
    return look && row(look, look.from);
  };

  // What is special about the row of the token that is looked at.
  const kindAt = (stream) => {
    const look = nowAt(stream);
    return look ? kindOf(look, focusOf(look.stream), state.head) : "";
  };

  // What lies on the photo: the row of weights by lane, and whether a mask closed some; null where the film lacks it.
  const seen = (stream, name) => {
    const { rollout } = film.streams[stream];
    if (name === "rollout") {
      const found = rollout && rowOf(rollout, film.streams[stream], focusOf(stream), -1);
      return found && { row: found, closed: false };
    }
    const look = nowAt(stream);
    const found = look && row(look, look.from);
    return found && { row: found, closed: look.mask !== "none" && kindAt(stream) !== "nothing" };
  };
  return { drawn, focusOf, kindAt, lookAt, rowAt, seen, streamNow, strongest, rowOf: row, head: () => state.head };
}

// The words of the beat: what they say of the mean over the heads gives way to the same of the head that is chosen.
export function wordsOf(film, state) {
  const beat = film.beats[state.at];
  const own = beat.heads?.[state.head];
  if (!own) return beat;
  return { ...beat, title: `${beat.title.split(": ")[0]}, head ${state.head + 1}`, sentence: `${own} ${beat.rest}`.trim() };
}

// The measure that colours the lanes of a stream from a snapshot on: lengths, where it lacks the one that is chosen.
export function nameAt(scales, chosen, snapshot) {
  const name = scales?.[chosen] ? chosen : "change";
  return measured(snapshot, name) ? name : "length";
}

const multiple = (share) => (share < 10 ? percent(share) : `${share.toPrecision(3)} ×`);

// The choices around the stage. `changed` is called when one of them is made.
export function choices(root, film, state, eye, scales, changed) {
  const find = (name) => root.querySelector(name);
  const streamHere = () => film.beats[state.at].stream ?? (film.streams.length ? 0 : null);
  delete find(".token").dataset.stream; // the list may be that of another film

  // The choice of a token: the same as pointing, for the keyboard.
  function tokens() {
    const select = find(".token");
    const stream = streamHere();
    select.closest("label").hidden =
      stream === null || !(film.pictures || film.looks.some((look) => look.stream === stream && look.queries.length > 1));
    if (stream === null) return;
    if (select.dataset.stream !== String(stream)) {
      select.dataset.stream = stream;
      const lanes = film.streams[stream].lanes.slice(0, LANES);
      select.replaceChildren(...lanes.map((lane, at) => new Option(`${at + 1}: ${lane.mark}`, at)));
    }
    select.value = eye.focusOf(stream);
  }

  function heads() {
    const select = find(".head");
    const look = film.looks.find((one) => one.stream === (film.beats[state.at].stream ?? 0));
    const views = film.heads ?? look?.weights.shape[0] ?? 1;
    select.closest("label").hidden = views < 2;
    if (views < 2) return;
    const all = film.pictures ? [] : [new Option("all", -1)]; // a step is of one head, and has no mean
    if (select.dataset.views !== `${all.length} ${views}`) {
      select.dataset.views = `${all.length} ${views}`;
      if (state.head >= views) state.head = -all.length;
      const each = Array.from({ length: views }, (_, head) => new Option(`head ${head + 1}`, head));
      select.replaceChildren(...all, ...each);
    }
    select.value = state.head;
  }

  // What lanes are coloured by, with its ends.
  function legend(theme) {
    if (film.pictures) return pictureLegend();
    const stream = film.beats[state.at].stream ?? 0;
    const node = find(".legend");
    const shown = film.beats.slice(0, state.at + 1).findLast((one) => one.snapshot !== null && one.stream === stream);
    const snapshot = film.snapshots[shown?.snapshot];
    updates(film.snapshots[film.beats[state.at].snapshot], film.beats[state.at]);
    const name = snapshot && nameAt(scales[stream], state.measure, snapshot);
    const scale = scales[stream]?.[name];
    node.hidden = !scale;
    if (node.hidden) return;
    const read = film.streams[stream].lanes[film.streams[stream].read]?.name;
    const { least, most } = scale;
    const [what, write] = {
      like: [`Lanes: cosine of others with ${read}`, (value) => decimals(value, 2)],
      change: ["Lanes: how far this changed them", multiple],
      length: ["Lanes: length of each vector", (value) => value.toPrecision(3)],
    }[name];
    find(".legend .what").textContent = what;
    find(".legend .least").textContent = write(least);
    find(".legend .most").textContent = write(most);
    find(".legend .ramp").style.setProperty("--ramp", [0, 0.25, 0.5, 0.75, 1].map((share) => rgb(shade(theme, share))).join(","));
  }

  // What the bars in a block are, with the largest of them.
  function updates(snapshot, beat) {
    const node = find(".updates");
    node.hidden = !beat.number || !snapshot?.attention;
    if (node.hidden) return;
    find(".updates .mlp").hidden = !snapshot.mlp;
    find(".updates .most").textContent = multiple(mostAdded(snapshot));
  }

  // The scale of the result of a step; each picture, and each of its heads, has its own, which is that of means where a cell
  // stands for several numbers.
  function pictureLegend() {
    find(".updates").hidden = true;
    const picture = film.pictures[film.beats[state.at].drawn.at(-1)];
    find(".legend").hidden = !picture;
    if (!picture) return;
    const head = headOf(picture, state.head, film.heads);
    const [, , scale, least, most] = picture.scales[head];
    const count = picture.box[0] * picture.box[1];
    const whole = picture.full.every((size, axis) => size % picture.box[axis] === 0);
    const means = count > 1 ? `, means of ${whole ? "" : "up to "}${count} numbers` : "";
    find(".legend .what").textContent = `${film.beats[state.at].label}${picture.cells.shape[0] > 1 ? `, head ${head + 1}` : ""}${means}:`;
    find(".legend .least").textContent = least;
    find(".legend .most").textContent = most;
    find(".legend .ramp").style.setProperty("--ramp", ramp(film.colours[scale]).join(","));
  }

  // One line under the stage: where the token that is looked at looks.
  function point() {
    const beat = film.beats[state.at];
    const node = find(".point .text");
    if (film.pictures) {
      find(".point").hidden = !film.streams.length;
      find(".point .glow").hidden = true;
      if (film.streams.length) node.textContent = `Inside ${film.inside}. Outlined: the row of ${film.streams[0].lanes[eye.focusOf(0)].name}.`;
      return;
    }
    const stream = eye.streamNow();
    const rolled = state.look === "rollout" && stream >= 0 ? eye.seen(stream, "rollout") : null;
    const source = rolled ? stream : (eye.drawn()?.from ?? stream);
    const row = rolled?.row ?? (stream < 0 ? null : eye.rowAt(source));
    find(".point").hidden = !row;
    if (!row) {
      const look = stream < 0 ? null : eye.lookAt(stream);
      const only = look && look.queries.length === 1;
      find(".point").hidden = !only;
      find(".point .glow").hidden = true;
      node.textContent = only ? `This film holds the attention of ${film.streams[stream].lanes[look.slots[look.queries[0]]].name} alone.` : "";
      return;
    }
    find(".point .glow").hidden = false;
    const focus = eye.focusOf(stream);
    const most = row.indexOf(maximum(row));
    const lane = film.streams[source].lanes;
    const short = (one) => (one.patch === null ? one.name : one.mark);
    const who = short(film.streams[stream].lanes[focus]);
    const head = state.head >= 0 && !rolled ? `, head ${state.head + 1}` : "";
    const target = most === focus && source === stream ? "itself" : short(lane[most]);
    const what = rolled ? "attention of all blocks, by rollout" : "attention";
    const others = !rolled && beat.number ? eye.strongest(film.looks[beat.look], source) : null;
    const faint = others?.some((one, lane) => one !== null && lane !== focus);
    const says = {
      nothing: "attends to nothing: every weight of this row is 0.",
      alone: `attends only to ${target}: every other weight of this row is 0.`,
      even: `attends equally to all ${row.filter((weight) => weight > 0).length} tokens that it may attend to.`,
    }[rolled ? "" : eye.kindAt(source)];
    const faintly = element("span", "faint", faint ? "; faint: the largest of other tokens" : "");
    node.replaceChildren(`Amber: ${what}`, faintly, `. ${who[0].toUpperCase()}${who.slice(1)}${head} ${says ?? `looks most at ${target}: ${percent(row[most])}.`}`);
  }

  // The pictures that the photo can show: those that this film has.
  const own = film.streams.findIndex((stream) => stream.lanes.some((lane) => lane.patch !== null));
  const attends = film.looks.some((look) => look.stream === own);
  const names = Object.keys(LOOKS).filter((name) => (name === "attention" ? attends : name !== "rollout" || film.streams[own]?.rollout));
  find(".look > span").replaceChildren(
    ...names.map((name) =>
      makeRadio("look", name, LOOKS[name], name === state.look, () => {
        state.look = name;
        show();
        changed();
      }),
    ),
  );
  function looks() {
    for (const input of root.querySelectorAll(".look input")) input.checked = input.value === state.look;
    const colour = find(".colour");
    colour.setAttribute("aria-pressed", String(state.colour));
    colour.hidden = !names.includes("attention") || !["attention", "rollout"].includes(state.look);
  }
  find(".colour").onclick = () => {
    state.colour = !state.colour;
    show();
    changed();
  };
  find(".token").onchange = ({ target }) => {
    state.pinned[Number(target.dataset.stream)] = Number(target.value);
    show();
    changed(true);
  };
  find(".head").onchange = ({ target }) => {
    state.head = Number(target.value);
    show();
    changed(false, Boolean(film.pictures)); // the scale of a picture is that of its head
  };
  const measures = Object.keys(MEASURES).filter((name) => scales.some((scale) => scale[name]));
  const choice = find(".measure");
  choice.closest("label").hidden = measures.length < 2;
  choice.replaceChildren(...measures.map((name) => new Option(MEASURES[name], name)));
  choice.value = state.measure;
  choice.onchange = () => {
    state.measure = choice.value;
    changed(false, true);
  };
  function show() {
    tokens();
    heads();
    looks();
    point();
  }
  return { show, legend };
}
