"use strict";

// Pages with live numbers fetch themselves every few seconds and replace the old numbers with the
// new ones. Without this script they are reloaded like any other page.
(() => {
  const EVERY = 5000; // milliseconds
  const ANNOUNCE_EVERY = 30000; // milliseconds between announcements to screen readers, of changes only
  const control = document.querySelector("[data-live-control]");
  if (!control) return;
  const wanted = control.querySelector("input");
  const time = control.querySelector("[data-live-time]");
  const announcement = control.querySelector("[data-live-announcement]");
  let announcedAt = Date.now();

  const summary = () =>
    [...document.querySelectorAll("[data-summary]")].map((part) => part.dataset.summary).join(", ");
  let known = summary();

  function take(page) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (!fresh || old.contains(document.activeElement)) continue; // nobody loses their place
      old.replaceChildren(...fresh.childNodes);
      if (fresh.dataset.summary) old.dataset.summary = fresh.dataset.summary;
    }
    const now = summary();
    if (now !== known && Date.now() - announcedAt >= ANNOUNCE_EVERY) {
      known = now;
      announcedAt = Date.now();
      announcement.textContent = now;
    }
  }

  async function renew() {
    if (!wanted.checked || document.hidden) return;
    try {
      const answer = await fetch(control.dataset.liveFrom || location.href, { signal: AbortSignal.timeout(EVERY) });
      if (!answer.ok) throw new Error();
      take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      time.textContent = `renewed ${new Date().toISOString().slice(11, 19)} UTC`;
      time.className = "";
    } catch {
      time.textContent = "The server does not answer; these numbers are old.";
      time.className = "warning";
    }
  }

  async function go() {
    await renew();
    setTimeout(go, EVERY);
  }

  control.hidden = false;
  setTimeout(go, EVERY);
})();
