// Gets this page again every two seconds while it is visible, and replaces the parts that have changed.
"use strict";
const PAUSE = 2000, DEADLINE = 15000;
const FOCUSABLE = "a, summary, select, button";
let timer = 0;

// Replace a part of the page; what the user has opened, scrolled and focused stays so.
function replacePart(old, part) {
  const opened = [...old.querySelectorAll("details")];
  part.querySelectorAll("details").forEach((details, at) => { details.open = Boolean(opened[at]?.open); });
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && selection.containsNode(old, true);
  if (isSelected || old.isEqualNode(part)) return;
  const focused = [...old.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  const log = old.querySelector(".log");
  const top = log && log.scrollTop + log.clientHeight < log.scrollHeight - 5 ? log.scrollTop : Infinity;
  const left = old.scrollLeft;
  old.replaceWith(part);
  part.scrollLeft = left;
  showLog(part, top);
  part.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
}

function showLog(part, top) {
  part.querySelectorAll(".log").forEach((log) => { log.scrollTop = Math.min(top, log.scrollHeight); });
}

function replaceParts(old, fresh) {
  const before = [...old.children], parts = [...fresh.children];
  parts.forEach((part, at) => { before[at] ? replacePart(before[at], part) : old.append(part); });
  before.slice(parts.length).forEach((part) => part.remove());
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return;
  const offline = document.getElementById("offline");
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(DEADLINE) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = page.title;
    replaceParts(document.querySelector("main"), page.querySelector("main"));
    offline.hidden = true;
  } catch {
    offline.hidden = false;
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, PAUSE);
}

document.addEventListener("visibilitychange", refresh);
showLog(document, Infinity);
timer = setTimeout(refresh, PAUSE);
