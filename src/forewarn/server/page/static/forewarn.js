"use strict";
// What the server cannot do: the theme, the clock, countdowns, keys, the panel. All else is HTML.
(() => {
  const root = document.documentElement;
  const wanted = localStorage.getItem("theme");
  if (wanted) root.dataset.theme = wanted;

  // The service's clock: its time when the page was made, and how fast it goes.
  let told = 0, at = 0, scale = 1;
  const set = (millis) => { told = millis; at = performance.now(); };
  const now = () => told + (performance.now() - at) * scale;
  const two = (number) => String(number).padStart(2, "0");

  const left = (millis) => {
    const all = Math.max(0, Math.round(millis / 1000)), minutes = Math.floor(all / 60);
    return minutes < 60
      ? `${minutes}:${two(all % 60)}`
      : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(all % 60)}`;
  };

  const tick = () => {
    const clock = document.getElementById("clock");
    if (!clock) return;
    clock.textContent = new Date(now()).toISOString().slice(11, 19);
    for (const each of document.querySelectorAll("[data-until]"))
      each.textContent = left(each.dataset.until - now());
    for (const each of document.querySelectorAll("[data-since]"))
      each.textContent = left(now() - each.dataset.since);
  };

  // All times are the service's, in UTC; what it is on the reader's own clock shows on hovering.
  const local = () => {
    for (const each of document.querySelectorAll("time[datetime]")) {
      const moment = new Date(each.getAttribute("datetime"));
      if (!isNaN(moment)) each.title = `${each.getAttribute("datetime")} · ${moment.toLocaleString()}`;
    }
  };

  const live = (word) => {
    const dot = document.getElementById("live");
    if (!dot) return;
    dot.dataset.state = word;
    document.getElementById("live-word").textContent = word;
  };

  // A link has its token in the fragment, which no browser sends, and no history needs to keep. The
  // form is the script's own: a window that shows why it was refused has none.
  const logIn = () => {
    if (location.pathname !== "/login" || !location.hash) return;
    const form = Object.assign(document.createElement("form"), { method: "post", action: "/login" });
    const token = document.createElement("input");
    form.append(Object.assign(token, { name: "token", type: "hidden", value: location.hash.slice(1) }));
    history.replaceState(null, "", "/login");
    document.body.append(form);
    form.submit();
  };

  const panel = () => document.getElementById("panel");
  let shown = null; // the address of what the panel shows
  const close = () => {
    panel().hidden = true;
    panel().replaceChildren();
    document.querySelector(`[data-opens="${CSS.escape(shown ?? "")}"]`)?.focus();
    shown = null;
  };

  document.addEventListener("DOMContentLoaded", () => {
    const clock = document.getElementById("clock");
    if (clock) {
      scale = Number(clock.dataset.scale);
      set(Number(clock.dataset.now));
      tick();
      setInterval(tick, Math.max(100, 1000 / scale));
    }
    document.getElementById("theme")?.addEventListener("click", () => {
      const dark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
    });
    for (const box of document.querySelectorAll("[data-filters]")) {
      box.hidden = false;
      box.addEventListener("input", () => {
        for (const label of box.parentElement.querySelectorAll("label"))
          label.hidden = !label.textContent.toLowerCase().includes(box.value.toLowerCase());
      });
    }
    local();
    logIn();
  });
  window.addEventListener("hashchange", logIn);

  document.addEventListener("htmx:sse:after:connection", () => {
    live("live");
    if (refused?.id === "live") document.getElementById("refusal").replaceChildren();
    // A hidden window lets go of its stream: a browser has six connections for all windows. htmx
    // sees to that when the visibility changes, so not by itself in one that was hidden before.
    if (document.hidden) queueMicrotask(() => document.dispatchEvent(new Event("visibilitychange")));
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) live("connecting"); });
  // The first connection is a request like others: #live asks again each 11 s until it has a stream.
  document.addEventListener("htmx:finally:request", ({ target, detail }) => {
    if (target.id === "live" && !detail.ctx.response?.raw.ok) live("cut off");
  });
  document.addEventListener("htmx:sse:close", () => live("cut off"));
  document.addEventListener("htmx:sse:error", (event) => {
    live("cut off");
    if (event.detail.status !== 401) return;
    if (document.querySelector("main[hx-get]")) location.assign("/login");
    else document.getElementById("live-word").textContent = "logged out"; // what is typed stays
  });
  document.addEventListener("changed", (event) => {
    live("live");
    const millis = Number(event.detail?.data);
    if (millis) set(millis);
    if (shown) htmx.ajax("GET", shown, { target: "#panel", swap: "innerMorph" });
  });
  // A proxy that has lost the service, or wants a log-in, answers with a page of its own.
  document.addEventListener("htmx:before:swap", (event) => {
    if (event.detail.ctx.response?.raw.headers.get("vary")?.includes("HX-Request")) return;
    event.preventDefault();
    live("cut off");
  });
  let focused = null; // what had the focus last
  document.addEventListener("focusin", (event) => { focused = event.target; });
  let refused = null; // whose request the refusal that is shown is about
  document.addEventListener("htmx:after:swap", (event) => {
    const { target, sourceElement } = event.detail.ctx ?? {};
    if (target === "#refusal") refused = sourceElement; // as the answer names it
    else if (refused === sourceElement) document.getElementById("refusal").replaceChildren();
    if (target?.id === "panel" && !shown) close(); // Esc came before the answer
    else if (target?.id === "panel" && panel().childElementCount) {
      const was = panel().hidden;
      panel().hidden = false;
      if (was) panel().querySelector("h1")?.focus();
    }
    if (focused && !focused.isConnected) // a reader of the screen would begin at the top
      (panel().querySelector("h1") ?? document.getElementById("main")).focus({ preventScroll: true });
    local();
    tick();
  });

  document.addEventListener("click", (event) => {
    const opens = event.target.closest("[data-opens]");
    if (opens && !(event.ctrlKey || event.metaKey || event.shiftKey)) shown = opens.dataset.opens;
    if (event.target.closest("[data-close]")) {
      if (panel().contains(event.target)) close();
      else event.target.closest(".refusal")?.remove();
    }
  });
  // A second click sends nothing. What Stop ended, or the browser goes back to, may be sent again.
  let sent = new WeakSet();
  const forget = () => { sent = new WeakSet(); };
  document.addEventListener("submit", (event) => {
    if (event.target.method === "post" && sent.has(event.target)) event.preventDefault();
    sent.add(event.target);
  });
  window.addEventListener("pageshow", forget);
  window.navigation?.addEventListener("navigateerror", forget);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel()?.hidden) close();
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    document.getElementById("search")?.focus();
  });
})();
