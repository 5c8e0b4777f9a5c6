"use strict";

// Pages with numbers that change fetch themselves every few seconds and put the new numbers in the
// place of the old. Without this script they are renewed as any page is.
(() => {
  const EVERY = 5000; // milliseconds
  const SAID_EVERY = 30000; // to those who listen, and only what has changed
  const control = document.querySelector("[data-live-control]");
  if (!control) return;
  const wanted = control.querySelector("input");
  const time = control.querySelector("[data-live-time]");
  const said = control.querySelector("[data-live-said]");
  let saidAt = Date.now();

  const summary = () =>
    [...document.querySelectorAll("[data-summary]")].map((one) => one.dataset.summary).join(", ");
  let known = summary();

  function take(page) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (!fresh || old.contains(document.activeElement)) continue; // nobody loses their place
      old.replaceChildren(...fresh.childNodes);
      if (fresh.dataset.summary) old.dataset.summary = fresh.dataset.summary;
    }
    const now = summary();
    if (now !== known && Date.now() - saidAt >= SAID_EVERY) {
      known = now;
      saidAt = Date.now();
      said.textContent = now;
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
