// What a block of the film holds: asked of the server when the block is opened, and handed to the film.

export default function ({ data, setStateValue }) {
  const { facts, body } = unpack(data);
  const send = () => {
    dispatchEvent(new CustomEvent("block came", { detail: { run: facts.run, beat: facts.beat, bytes: body } }));
  };
  const wanted = ({ detail }) => {
    if (facts.run === detail.run && facts.beat === detail.beat) send();
    else setStateValue("wanted", detail);
  };
  const deaf = hear(window, { "block wanted": wanted });
  if (facts.beat) send();
  return deaf;
}
