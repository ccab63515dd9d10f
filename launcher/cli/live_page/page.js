// Gets this page again every two seconds while it is visible, and replaces the parts that have changed.
"use strict";
const PAUSE = 2000, DEADLINE = 15000;
let timer = 0;

function replaceChanged(old, fresh) {
  const before = [...old.children];
  [...fresh.children].forEach((part, index) => {
    const known = before[index];
    if (!known) return old.append(part);
    const opened = [...known.querySelectorAll("details")];
    part.querySelectorAll("details").forEach((details, at) => { details.open = Boolean(opened[at]?.open); });
    if (!known.isEqualNode(part)) known.replaceWith(part);
  });
  before.slice(fresh.childElementCount).forEach((part) => part.remove());
}

function showEndOfLog() {
  document.querySelectorAll(".log").forEach((log) => { log.scrollTop = log.scrollHeight; });
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return;
  const offline = document.getElementById("offline");
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(DEADLINE) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = page.title;
    replaceChanged(document.querySelector("main"), page.querySelector("main"));
    showEndOfLog();
    offline.hidden = true;
  } catch {
    offline.hidden = false;
  }
  timer = setTimeout(refresh, PAUSE);
}

document.addEventListener("visibilitychange", refresh);
showEndOfLog();
timer = setTimeout(refresh, PAUSE);
