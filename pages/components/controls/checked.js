// Polls, at growing intervals, whether the check of the lines on other runs is done, and then asks for the page anew.

const PAUSES = [1000, 30000]; // milliseconds between two requests, at first and at most
const LONGEST = 10000; // milliseconds that a change of page is waited for
const LINK = "[data-testid=stPageLink-NavLink]";

/** Tells whether another page is on its way: a request at that moment would lead back to the page before. */
function watchNavigation() {
  const app = document.querySelector(".stApp");
  let since = -Infinity; // when another page was asked for
  let begun = false; // whether its run has begun
  const leave = (event) => {
    if (event.type === "click" && !event.target.closest?.(LINK)) return;
    [since, begun] = [performance.now(), false];
  };
  const watch = new MutationObserver(() => {
    const runs = app.dataset.testScriptState === "running";
    if (begun && !runs) since = -Infinity;
    begun = runs;
  });
  if (app) watch.observe(app, { attributeFilter: ["data-test-script-state"] });
  const deaf = hear(window, { click: leave, popstate: leave }, true);
  return {
    underWay: () => performance.now() - since < LONGEST,
    stop() {
      watch.disconnect();
      deaf();
    },
  };
}

export default function ({ data, setTriggerValue }) {
  const navigation = watchNavigation();
  let over = false;
  let pause = PAUSES[0];
  const draw = () => {
    if (over) return;
    if (navigation.underWay()) setTimeout(draw, 100);
    else setTriggerValue("made", true);
  };
  const ask = async () => {
    if (over) return;
    const place = new URL(`.${data.path}`, document.baseURI);
    const answer = document.hidden ? null : await fetch(place, { method: "POST", body: data.token }).catch(() => null);
    if (over || answer?.status === 404) return;
    if (answer?.status === 204) return draw();
    pause = Math.min(2 * pause, PAUSES[1]);
    setTimeout(ask, pause);
  };
  setTimeout(ask, pause);
  return () => {
    over = true;
    navigation.stop();
  };
}
