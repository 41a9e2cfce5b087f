// Your own photo or text, big enough to be seen first. Files go through the one box that has the bounds.

const NONE = "No camera is available: browsers allow it only on pages over https or on localhost.";

export default function ({ data, parentElement, setTriggerValue }) {
  const find = (selector) => parentElement.querySelector(selector);
  const { photo, text, small } = data;
  const phone = matchMedia("(pointer: coarse)").matches; // which offers its camera itself
  find(".give").classList.toggle("small", small);
  find("button.pick-photo").hidden = !photo || small;
  const use = matchMedia("(max-width: 640px)").matches ? "Your" : "Use your";
  find("button.pick-photo").textContent = `${use} photo`;
  find("button.pick-text").textContent = `${use} text`;
  find("button.pick-text").hidden = !text || small;
  find("button.pick-photo").classList.toggle("main", photo);
  find("button.pick-text").classList.toggle("main", text && !photo);
  find("button.camera").hidden = !photo || phone || !navigator.mediaDevices;
  find("button.pick-photo").title = "You can also drop a photo on the page, or paste it.";
  find(".way").textContent = !photo || small ? "" : "or drop it, or paste it";
  find(".refused").textContent = photo && small && !phone && !navigator.mediaDevices ? NONE : "";
  handle(find("button.pick-photo"), "click", pickPhoto);

  const writing = find(".writing");
  const area = find("textarea");
  const write = (open) => {
    writing.hidden = !open;
    find("button.pick-text").setAttribute("aria-expanded", String(open));
    if (open) area.focus();
  };
  handle(find("button.pick-text"), "click", () => write(writing.hidden));
  handle(find(".leave"), "click", () => write(false));
  if (area.known !== data.typed) area.value = area.known = data.typed ?? "";
  writing.onsubmit = (event) => {
    event.preventDefault();
    write(false);
    setTriggerValue("text", area.value);
  };
  area.onkeydown = (event) => {
    if (event.key === "Escape") write(false);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) writing.requestSubmit();
  };

  const video = find("video");
  let stream = null;
  function close() {
    stream?.getTracks().forEach((track) => track.stop());
    stream = video.srcObject = null;
    find(".shot").hidden = true;
  }
  find("button.camera").onclick = async () => {
    if (stream) return close();
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } } });
    } catch (error) {
      find(".refused").textContent = `The browser did not open the camera: ${error.message}.`;
      return;
    }
    find(".refused").textContent = "";
    find(".shot").hidden = false;
    video.srcObject = stream;
    await video.play();
  };
  handle(find(".close"), "click", close);
  find(".take").onclick = () => {
    const picture = makeCanvas(video.videoWidth, video.videoHeight);
    picture.getContext("2d").drawImage(video, 0, 0);
    picture.toBlob((blob) => hand(new File([blob], "camera photo.jpg", { type: "image/jpeg" })), "image/jpeg", 0.92);
    close();
  };
  return close;
}
