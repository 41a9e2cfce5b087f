// Keys of the whole page: whose they are.

/** Whether a key that is pressed belongs to something else: a box, a slider, a dialogue, a list of Streamlit's. */
function taken(event) {
  const [at] = event.composedPath();
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return true;
  return Boolean(
    at.isContentEditable ||
      at.closest?.(
        "input, textarea, select, dialog, canvas[tabindex], [role=slider], [role=combobox], [role=listbox], [role=menu]," +
          "[role=tablist], [role=grid], [role=radiogroup], [role=dialog]",
      ),
  );
}

/** Hears the keys that nobody takes while the page is presented and `picture` is in view. Returns what stops it. */
function presented(picture, heard) {
  const keys = (event) => {
    const { top, height } = picture.getBoundingClientRect();
    const seen = top + height > 0 && top < innerHeight;
    if (document.body.hasAttribute("data-present") && seen && !event.shiftKey && !taken(event)) heard(event);
  };
  return hear(window, { keydown: keys });
}
