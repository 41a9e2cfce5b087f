// The film: its state, its clock and its keys.

import { answerView } from "./answer.js";
import { captionView } from "./captions.js";
import { hear } from "../../scripts/dom.js";
import { printing } from "./frames.js";
import { choices, eyeOf, nameAt, wordsOf } from "./looks.js";
import { measure, themeOf } from "./stage/colours.js";
import { chips, largeChips, loadPhoto } from "./stage/input.js";
import { layOut } from "./stage/layout.js";
import { listen, pointed } from "./stage/pointing.js";
import { scene } from "./stage/scene.js";
import { paintLanes } from "./stage/stream.js";
import { tensors } from "./stage/tensors.js";
import { scrubber } from "./scrubber.js";

const LONGEST = 15_500; // milliseconds that Play takes at most, unless beats would be too short to see
const DWELL = [420, 1_250]; // milliseconds of a beat when playing, at least and at most
const MOVE = 820; // milliseconds of a transition
const STEPS = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };

// What a key asks for on a page that the film has to itself: steps, an end, or to play; null for any other.
function asked(event) {
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return null;
  const [target] = event.composedPath();
  if (target.closest?.("select, input, textarea")) return null;
  if (STEPS[event.key]) return { by: STEPS[event.key] };
  if (event.key === "Home" || event.key === "End") return { to: event.key === "Home" ? 0 : Infinity };
  return event.key === " " && !target.closest?.("button") ? { play: true } : null;
}

// Shows a film in an element with the player's markup, from a beat on. `heard` says what a key asks for, `moved` is told
// where the film stands after each choice, with whether more of them may follow at once. A block that is opened is shown
// at a `head`, with the patches of the film that it is of in `thumbs`. `photo` is that of a film before, where it is the
// same. `paper` says what is printed: "film", as frames on sheets, or
// "beat", the one on screen. Returns the film's controls.
export function mount(root, film, { at = 0, pinned = null, head = -1, thumbs = null, photo = null, heard = asked, moved = () => {}, paper = "" } = {}) {
  const find = (name) => root.querySelector(name);
  const canvas = find("canvas");
  const context = canvas.getContext("2d");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const last = film.beats.length - 1;
  const state = {
    at: Math.min(at, last), part: 1, head: film.pictures ? Math.max(0, head) : head, measure: "change", look: "attention", colour: false, playing: false,
    pinned: film.streams.map((_, stream) => (pinned?.stream === stream ? pinned.lane : null)), pointed: null, hiding: false,
  };
  const dwell = Math.max(DWELL[0], Math.min(DWELL[1], LONGEST / film.beats.length));
  const speed = Math.min(MOVE, 0.9 * dwell);
  const view = { place: null, words: [], theme: null, photo: photo ?? loadPhoto(film, () => draw(true)) };
  let [drawn, frame, before, clock, ended] = ["", 0, 0, 0, false];
  film.looks.forEach((look, at) => (look.stream = film.beats.find((beat) => beat.look === at).stream));
  const scales = film.streams.map((_, stream) => ({ like: measure(film, stream, "like"), change: measure(film, stream, "change") }));
  if (scales.some((scale) => scale.like)) state.measure = "like";
  const lengths = () => scales.forEach((scale, stream) => (scale.length = measure(film, stream, "length", scale[state.measure] ? state.measure : "change")));
  lengths();
  const eye = eyeOf(film, state);
  const caption = captionView(root);
  const answer = answerView(find(".answer"), film.answer);
  const track = scrubber(find(".scrubber"), film, (at) => go(at, true));
  const controls = choices(root, film, state, eye, scales, (kept, anew) => {
    caption.show(wordsOf(film, state));
    if (kept) told();
    if (anew) {
      lengths();
      controls.legend(view.theme);
      draw(true);
    }
    wake();
  });
  const firstBar = (box) => {
    const bar = find(".bar.first");
    return bar ? bar.offsetTop + bar.offsetHeight / 2 : box.h / 2; // the middle of the likeliest answer, from the top of the box
  };
  const picture = film.pictures ? tensors(context, film, view, eye, thumbs) : scene(context, film, view, eye, firstBar);

  // The lane that is kept by a click, with its stream; null where none is.
  const kept = () => {
    const stream = state.pinned.findIndex((lane) => lane !== null);
    return stream < 0 ? null : { stream, lane: state.pinned[stream] };
  };
  const told = (held = false) => moved({ at: state.at, pinned: kept() }, held);

  function go(at, stop = false, held = false) {
    const next = Math.max(0, Math.min(last, at));
    if (stop) play(false);
    if (next === state.at) return;
    state.at = next;
    state.part = calm.matches ? 1 : 0;
    clock = 0;
    describe();
    wake();
    told(held);
  }

  function describe() {
    caption.show(wordsOf(film, state));
    track.mark(state.at);
    controls.show();
    if (view.theme) controls.legend(view.theme);
    root.dataset.beat = state.at;
  }

  function play(on) {
    state.playing = on;
    const button = find(".play");
    button.querySelector("span").textContent = on ? "Pause" : "Play";
    button.dataset.playing = on;
    button.setAttribute("aria-label", on ? "Pause" : "Play the run");
    find(".caption").setAttribute("aria-live", on ? "off" : "polite");
    if (!on) return;
    if (state.at === last) {
      state.at = 0;
      state.part = 0;
      describe();
      told(true);
    }
    clock = 0;
    wake();
  }

  function resize() {
    const box = canvas.parentElement.getBoundingClientRect();
    const ratio = Math.min(2, devicePixelRatio || 1);
    view.theme = themeOf(root);
    const key = [box.width, box.height, ratio, view.theme.paper, state.measure, view.photo?.ready].join();
    track.build();
    if (key === drawn || !box.width || !box.height) return;
    drawn = key;
    Object.assign(canvas, { width: Math.round(box.width * ratio), height: Math.round(box.height * ratio) });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const place = (view.place = layOut(film, box.width, box.height));
    view.words = film.streams.map((stream) => (place.text ? chips(context, stream, place.text) : []));
    place.large = film.streams.map((stream, index) => (view.words[index].length ? largeChips(context, stream, place.middle) : []));
    const paint = (name, stream) => paintLanes(place.streams[stream], view.theme, scales[stream][name], name, ratio, box.width, box.height);
    const painted = new Map();
    view.lanesAt = (stream, snapshot) => {
      const name = nameAt(scales[stream], state.measure, snapshot);
      const key = `${stream} ${name}`;
      if (!painted.has(key)) painted.set(key, paint(name, stream));
      return painted.get(key);
    };
    put(find(".looks"), place.looks);
    put(find(".hider"), place.hiding?.tools);
    put(find(".photo"), place.hiding?.photo);
    caption.fit();
    answer(0, place.answer, 0); // its bars stand in their places before a thread leads to one
    controls.legend(view.theme);
  }
  const put = (node, box) => {
    if (!node || !box) return;
    for (const [side, value] of Object.entries({ left: box.x, top: box.y, width: box.w, height: box.h })) {
      if (value !== undefined) node.style[side] = `${value}px`;
    }
  };

  function draw(anew = false) {
    if (ended) return; // a photo may come after the film was left
    if (anew) drawn = "";
    resize();
    if (!view.place) return;
    if (state.hiding) context.clearRect(0, 0, view.place.width, view.place.height);
    const full = state.hiding ? 0 : picture.draw(state.at, state.part, { name: state.look, colour: state.colour });
    const covered = state.hiding || (view.place.column && picture.alone(state.at)); // by the photo
    answer(full, view.place.answer, covered ? 0 : full ? 1 : 0.45);
    find(".looks").hidden = !film.photo || state.hiding || picture.alone(state.at);
  }

  // The clock runs while something moves, and stands still otherwise.
  function wake() {
    if (frame) return;
    before = performance.now();
    frame = requestAnimationFrame(tick);
  }
  function tick(now) {
    const passed = Math.min(60, now - before);
    before = now;
    state.part = calm.matches ? 1 : Math.min(1, state.part + passed / speed);
    if (state.playing) {
      clock += passed;
      if (clock >= dwell) {
        if (state.at === last) play(false);
        else go(state.at + 1, false, true);
      }
    }
    draw();
    frame = state.playing || state.part < 1 ? requestAnimationFrame(tick) : 0;
  }

  function look(target) {
    if (state.pointed?.stream === target?.stream && state.pointed?.lane === target?.lane) return;
    state.pointed = target;
    controls.show();
    wake();
  }
  function keep(target) {
    const same = target && state.pinned[target.stream] === target.lane;
    state.pinned.fill(null);
    if (target && !same) state.pinned[target.stream] = target.lane;
    controls.show();
    told();
    wake();
  }
  const onKey = (event) => {
    const wish = heard(event);
    if (!wish) return;
    event.preventDefault();
    if (wish.play) play(!state.playing);
    else go(wish.by ? state.at + wish.by : wish.to, true, event.repeat);
  };
  const relook = () => {
    draw(true);
  };
  const themed = ({ propertyName }) => {
    if (propertyName === "color") relook();
  };

  find(".model").textContent = film.model;
  find(".proofs").textContent = film.proofs;
  find(".play").onclick = () => {
    play(!state.playing);
  };
  find(".theme").onclick = () => {
    root.dataset.theme = themeOf(root).name === "dark" ? "light" : "dark";
    relook();
  };
  const pointing = listen(canvas, {
    at: (x, y) => (state.hiding ? null : pointed(film, view.place, view.words, eye.lookAt(film.beats[state.at].stream ?? 0), x, y)),
    look,
    keep,
    step: (by) => go(state.at + by, true),
  });
  const stops = [pointing, hear(window, { keydown: onKey })];
  const sized = new ResizeObserver(() => {
    if (root.isConnected) draw();
  });
  sized.observe(canvas.parentElement);
  stops.push(hear(dark, { change: relook }), hear(root, { transitionend: themed }));
  play(false);
  resize();
  describe();
  draw();

  // Stands where an address says: at a beat, with a lane kept.
  function stand(at, pinned) {
    state.pinned = film.streams.map((_, stream) => (pinned?.stream === stream ? pinned.lane : null));
    state.at = Math.max(0, Math.min(last, at));
    state.part = 1;
    describe();
    wake();
  }
  function hide(on) {
    if (state.hiding === on) return;
    state.hiding = on;
    find(".under").style.visibility = on ? "hidden" : ""; // what it explains is not drawn; its room stays
    if (on) play(false);
    draw();
  }
  // Draws a beat as it is printed: all of it, in the light theme; and then again what is on screen.
  function paperView() {
    let kept = null;
    const show = (at) => {
      kept ??= { at: state.at, part: state.part, theme: root.dataset.theme };
      root.dataset.theme = "light";
      Object.assign(state, { at, part: 1 });
      draw(true);
    };
    const back = () => {
      Object.assign(state, { at: kept.at, part: kept.part });
      if (kept.theme) root.dataset.theme = kept.theme;
      else delete root.dataset.theme;
      kept = null;
      draw(true);
    };
    return { show, back, at: () => (paper === "beat" ? state.at : null) };
  }
  if (paper) stops.push(printing(root, film, view.photo, paperView()));
  const end = () => {
    ended = true;
    cancelAnimationFrame(frame);
    sized.disconnect();
    stops.forEach((stop) => stop());
  };
  return (root.film = { go, play, stand, keep, hide, end, state, film, eye, photo: view.photo, kept, place: () => view.place });
}
