"use strict";

// Pages with live numbers fetch themselves every few seconds and replace the old numbers with the
// new ones, or get them as events. Without this script they are reloaded like any other page.
(() => {
  const EVERY = 5000; // milliseconds
  const AGAIN_AFTER = 60000; // milliseconds after a refused stream
  const ANNOUNCE_EVERY = 30000; // milliseconds between announcements to screen readers, of changes only
  const control = document.querySelector("[data-live-control]");
  if (!control) return;
  const wanted = control.querySelector("input");
  const time = control.querySelector("[data-live-time]");
  const events = window.EventSource && control.dataset.liveEvents;
  let stream = null;
  let unconnected = 0; // turns in which there was no connection
  let refusedAt = -Infinity; // when the server had no stream for us
  const announcement = control.querySelector("[data-live-announcement]");
  let announcedAt = Date.now();

  const summary = () =>
    [...document.querySelectorAll("[data-summary]")].map((part) => part.dataset.summary).join(", ");
  let known = summary();

  const parsed = (html) => new DOMParser().parseFromString(html, "text/html");

  function replace(old, fresh) {
    if (old.contains(document.activeElement)) return; // nobody loses their place
    const open = [...old.querySelectorAll("details")].map((part) => part.open);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll("details").forEach((part, place) => (part.open = Boolean(open[place])));
  }

  function renewed() {
    time.textContent = `renewed ${new Date().toISOString().slice(11, 19)} UTC`;
    time.className = "";
  }

  function failed() {
    time.textContent = "The server does not answer; these numbers are old.";
    time.className = "warning";
  }

  function take(page) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (!fresh) continue;
      replace(old, fresh);
      if (fresh.dataset.summary) old.dataset.summary = fresh.dataset.summary;
    }
    announce();
  }

  function announce() {
    const now = summary();
    if (now !== known && Date.now() - announcedAt >= ANNOUNCE_EVERY) {
      known = now;
      announcedAt = Date.now();
      announcement.textContent = now;
    }
  }

  async function renew() {
    try {
      const answer = await fetch(control.dataset.liveFrom || location.href, { signal: AbortSignal.timeout(EVERY) });
      if (!answer.ok) throw new Error();
      take(parsed(await answer.text()));
      renewed();
    } catch {
      failed();
    }
  }

  // The browser itself connects again when a stream ends, and sends the id of the last event.
  function listen() {
    stream = new EventSource(events);
    for (const part of document.querySelectorAll("[data-live]")) {
      stream.addEventListener(part.id, (event) => {
        const fresh = parsed(event.data).body;
        const summary = fresh.querySelector("[data-summary]");
        replace(part, fresh);
        if (summary) part.dataset.summary = summary.dataset.summary;
        renewed();
        announce();
      });
    }
    stream.addEventListener("beat", renewed);
    stream.addEventListener("error", () => {
      if (stream.readyState !== EventSource.CLOSED) return;
      stream = null; // refused: there are too many; fetch, and try again later
      refusedAt = Date.now();
    });
  }

  async function go() {
    unconnected = stream && stream.readyState === EventSource.CONNECTING ? unconnected + 1 : 0;
    if (unconnected > 2) failed();
    const watching = wanted.checked && !document.hidden;
    if (stream && !watching) {
      stream.close();
      stream = null;
    } else if (watching && events && !stream && Date.now() - refusedAt > AGAIN_AFTER) {
      listen();
    } else if (watching && !stream) {
      await renew();
    }
    setTimeout(go, EVERY);
  }

  control.hidden = false;
  setTimeout(go, events ? 0 : EVERY);
})();

// A file is sent with its progress shown; the answer takes the place of the page. Without this
// script the browser sends the form itself.
(function prepare() {
  const form = document.querySelector("form[data-upload]");
  if (!form) return;
  const state = form.querySelector("[data-upload-state]");
  const bar = form.querySelector("[data-upload-bar]");
  const progress = bar.querySelector("progress");
  const button = form.querySelector("button");

  function show(text, done) {
    state.textContent = text;
    state.hidden = false;
    bar.hidden = done === null;
    if (done === undefined) progress.removeAttribute("value");
    else if (done !== null) progress.value = done;
  }

  function finish(text) {
    button.disabled = false;
    show(text, null);
  }

  form.addEventListener("submit", (event) => {
    const file = form.querySelector("input[type=file]").files[0];
    if (!file) return;
    event.preventDefault();
    if (file.size > Number(form.dataset.upload)) return finish("This file is too large for this page.");
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.upload.addEventListener("progress", (sent) => {
      if (sent.lengthComputable) show(`${Math.floor((100 * sent.loaded) / sent.total)} % sent`, sent.loaded / sent.total);
    });
    request.upload.addEventListener("load", () => show("Sent. Its captures are looked up …"));
    request.addEventListener("error", () => finish("The server did not answer; nothing of the file is kept."));
    request.addEventListener("load", () => {
      const page = new DOMParser().parseFromString(request.responseText, "text/html");
      const fresh = page.querySelector("main");
      if (!fresh) return finish("The server did not answer with a page.");
      document.title = page.title;
      const main = document.querySelector("main");
      main.replaceChildren(...fresh.childNodes);
      main.focus();
      scrollTo(0, 0);
      prepare();
    });
    button.disabled = true;
    show("0 % sent", 0);
    request.send(new FormData(form));
  });
})();
