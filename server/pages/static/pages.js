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

  // A part waits while somebody uses it: nobody loses a link that they are about to follow, or the
  // text that they have selected. What has come for it meanwhile takes its place afterwards.
  const waiting = new Map();
  const USED = "a, button, input, select, textarea";
  const KEPT = ".box, summary"; // these get back their focus, and boxes what they were scrolled to

  function isUsed(part) {
    const focused = document.activeElement;
    if (part.contains(focused) && focused.matches(USED)) return true;
    const selected = getSelection();
    return !selected.isCollapsed && selected.containsNode(part, true);
  }

  function replace(old, fresh) {
    const open = [...old.querySelectorAll("details")].map((part) => part.open);
    fresh.querySelectorAll("details").forEach((part, place) => (part.open = Boolean(open[place])));
    if (fresh.dataset.summary) old.dataset.summary = fresh.dataset.summary;
    waiting.delete(old);
    if (old.innerHTML === fresh.innerHTML) return;
    if (isUsed(old)) {
      waiting.set(old, fresh);
      return;
    }
    const kept = [...old.querySelectorAll(KEPT)];
    const focused = kept.indexOf(document.activeElement);
    const places = kept.map((part) => [part.scrollLeft, part.scrollTop]);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll(KEPT).forEach((part, place) => {
      if (places[place]) [part.scrollLeft, part.scrollTop] = places[place];
      if (place === focused) part.focus({ preventScroll: true });
    });
  }

  function goOn() {
    if (![...waiting.keys()].some((part) => !isUsed(part))) return;
    for (const [part, fresh] of [...waiting]) replace(part, fresh);
    renewed();
    announce();
  }

  function renewed() {
    const now = new Date().toISOString().slice(11, 19);
    if (!waiting.size) time.textContent = `renewed ${now} UTC`;
    else time.textContent = "New numbers wait while text in the old ones is selected, or a link has the focus.";
    time.className = "";
  }

  function failed() {
    time.textContent = "The server does not answer; these numbers are old.";
    time.className = "warning";
  }

  function take(page) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (fresh) replace(old, fresh);
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
        replace(part, parsed(event.data).body);
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
    if (!watching) waiting.clear();
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

  document.addEventListener("selectionchange", goOn);
  document.addEventListener("focusout", () => setTimeout(goOn));
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

// The headings of a table become buttons that sort its rows. The order is that of this page only,
// which a note below the table says; without this script there is neither.
(() => {
  const compare = new Intl.Collator("en").compare;

  // What stands in a cell; null, which sorts last in both directions, if it is not known.
  function valueOf(row, place, kind) {
    const cell = row.cells[place];
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (text === "" || text === "not known") return null;
    return kind === "number" ? Number(text) : text;
  }

  function sort(table, heading) {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    const { cellIndex: place, dataset } = heading;
    const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, place, dataset.sort), row]);
    const order = dataset.sort === "number" ? (one, other) => one - other : compare;
    rows.sort(([one], [other]) => {
      if (one === null || other === null) return (one === null) - (other === null);
      return up ? order(one, other) : order(other, one);
    });
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table[data-sorted]")) {
    for (const heading of table.querySelectorAll("th[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.setAttribute("aria-describedby", table.dataset.sorted);
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, heading));
      heading.append(button);
    }
    document.getElementById(table.dataset.sorted).hidden = false;
  }
})();
