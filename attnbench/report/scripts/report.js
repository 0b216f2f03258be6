"use strict";
// The page's state (what is filtered, drawn and open), kept in the URL, and everything static that follows it.
const page = (() => {
  const $ = (id) => document.getElementById(id);
  const meta = JSON.parse($("meta").textContent);
  const total = meta.rows.panel.length;
  const choices = [...meta.dimensions, { key: "arm", label: "arm", values: meta.arms.map((arm) => arm.name) }];
  const options = {}; // name -> {initial, allowed}
  const listeners = [];
  const state = { picks: {}, words: "", options: {}, section: "", detail: null };
  const seen = { cases: null, pairs: new Set(), panels: [], count: 0 };

  /** An element. `text` is set as text, functions become listeners, true and false set or leave out an attribute. */
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") made.textContent = value;
      else if (typeof value === "function") made.addEventListener(name, value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  /** The content of a packed script element, as text. */
  async function unpack(id) {
    const bytes = Uint8Array.from(atob($(id).textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // ---- state and the URL

  function parse() {
    const hash = location.hash.slice(1);
    const isAnchor = hash !== "" && !hash.includes("=");
    const words = new URLSearchParams(isAnchor ? "" : hash);
    for (const { key, values } of choices) {
      const known = new Map(values.map((value, i) => [value, i]));
      const found = words
        .getAll(key)
        .filter((value) => known.has(value))
        .map((value) => known.get(value));
      state.picks[key] = found.length > 0 || words.get(key) === "" ? new Set(found) : null;
    }
    for (const [name, { initial, allowed }] of Object.entries(options)) {
      state.options[name] = allowed.includes(words.get(name)) ? words.get(name) : initial;
    }
    state.words = words.get("search") || "";
    state.section = isAnchor ? decodeURIComponent(hash) : words.get("section") || "";
    const arm = meta.arms.findIndex(({ name }) => name === words.get("show"));
    state.detail = arm < 0 ? null : { arm, panel: Number(words.get("chart")), x: Number(words.get("at")) };
  }

  function address() {
    const words = new URLSearchParams();
    for (const { key, values } of choices) {
      const pick = state.picks[key];
      if (pick) for (const value of pick.size ? pick : [-1]) words.append(key, values[value] ?? "");
    }
    for (const [name, { initial }] of Object.entries(options)) {
      if (state.options[name] !== initial) words.set(name, state.options[name]);
    }
    if (state.words) words.set("search", state.words);
    if (state.section) words.set("section", state.section);
    if (state.detail) {
      words.set("show", meta.arms[state.detail.arm].name);
      words.set("chart", state.detail.panel);
      words.set("at", state.detail.x);
    }
    return location.pathname + location.search + (words.size ? `#${words}` : "");
  }

  /** Change the state, keep it in the URL (as a step of the back button unless `replace`), and show it. */
  function change(mutate, { replace = false } = {}) {
    mutate(state);
    const url = address();
    if (url !== location.pathname + location.search + location.hash) {
      history[replace ? "replaceState" : "pushState"](null, "", url);
    }
    show();
  }

  /** Declare something that the URL keeps: its value when the URL says nothing, and the values that it may have. */
  function option(name, initial, allowed) {
    options[name] = { initial, allowed };
  }

  // ---- what matches

  const table = $("all");
  const rows = Array.from(table.tBodies[0].rows);
  seen.cases = new Uint8Array(Math.max(total, rows.length));
  let texts = null;

  function match() {
    const allowed = (key, value) => !state.picks[key] || state.picks[key].has(value);
    const panels = meta.panels.map((_, p) => meta.dimensions.every((d) => allowed(d.key, d.panels[p])));
    const arms = meta.arms.map((_, a) => allowed("arm", a));
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !texts) texts = rows.map((row) => row.textContent.toLowerCase());
    seen.pairs = new Set();
    seen.panels = meta.panels.map(() => 0);
    seen.count = 0;
    for (let i = 0; i < total; i++) {
      const p = meta.rows.panel[i],
        a = meta.rows.arm[i];
      const text = words.length ? (texts[i] ?? meta.arms[a].name.toLowerCase()) : "";
      const matches = panels[p] && arms[a] && words.every((word) => text.includes(word));
      seen.cases[i] = matches ? 1 : 0;
      if (!matches) continue;
      seen.pairs.add(p * meta.arms.length + a);
      seen.panels[p] += 1;
      seen.count += 1;
    }
    // What was only compiled is in no chart: words find it, a pick of something in the charts hides it.
    const isPicked = Object.values(state.picks).some(Boolean);
    for (let i = total; i < rows.length; i++)
      seen.cases[i] = !isPicked && words.every((word) => texts[i].includes(word)) ? 1 : 0;
  }

  const hasPair = (panel, arm) => seen.pairs.has(panel * meta.arms.length + arm);

  // ---- static parts

  const byPanel = Array.from(document.querySelectorAll("[data-panel]"));
  const groups = Array.from(document.querySelectorAll("[data-group]")).reverse(); // inner ones first
  const sections = Array.from(document.querySelectorAll("main > section")).filter((s) =>
    s.querySelector("[data-panel]"),
  );
  const empties = sections.map((section) => {
    const words = el("p", { class: "muted", text: "Nothing here matches the filter.", hidden: true });
    section.append(words);
    return words;
  });

  function showStatic() {
    for (const element of byPanel) {
      const panel = Number(element.dataset.panel);
      element.hidden = !seen.panels[panel];
      for (const row of element.querySelectorAll("[data-arm]")) row.hidden = !hasPair(panel, Number(row.dataset.arm));
    }
    for (const group of groups) group.hidden = !group.querySelector("[data-panel]:not([hidden])");
    sections.forEach((section, i) => {
      empties[i].hidden = section.querySelector("[data-panel]:not([hidden])") !== null;
    });
    rows.forEach((row, i) => {
      if (row.hidden === Boolean(seen.cases[i])) row.hidden = !seen.cases[i];
    });
  }

  function show() {
    match();
    showStatic();
    for (const listener of listeners) listener(state, seen);
  }

  // ---- the table sorts

  const units = { B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, TiB: 1099511627776 };
  function cellValue(row, column) {
    const text = row.cells[column].textContent,
      number = parseFloat(text.replace(/,/g, ""));
    return text === "" ? null : Number.isNaN(number) ? text : number * (units[text.split(" ")[1]] || 1);
  }
  function compare(a, b) {
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  }
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    let up = false;
    const sort = () => {
      up = !up;
      const keyed = rows.map((row) => [cellValue(row, column), row]);
      keyed.sort(([a], [b]) => (a === null || b === null || up ? 1 : -1) * compare(a, b));
      table.tBodies[0].append(...keyed.map(([, row]) => row));
      for (const cell of head.parentNode.cells) cell.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    };
    head.replaceChildren(el("button", { type: "button", text: head.textContent, click: sort }));
  });

  // ---- links inside the page keep the filter; print opens what is folded

  function goTo(id, behavior = "auto") {
    const target = $(id);
    if (!target) return;
    for (let up = target.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    const heading = target.querySelector("h2") || target;
    heading.setAttribute("tabindex", "-1");
    heading.focus({ preventScroll: true });
    target.scrollIntoView({ behavior });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const id = link.getAttribute("href").slice(1);
    change((s) => {
      s.section = id;
    });
    goTo(id);
  });
  addEventListener("popstate", () => {
    const before = state.section;
    parse();
    show();
    if (state.section && state.section !== before) goTo(state.section);
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("main details:not([open]):not(.screen)"));
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });

  function start() {
    parse();
    show();
    // After the browser's own handling of the fragment, which would take the focus away again.
    if (state.section) addEventListener("load", () => setTimeout(() => goTo(state.section, "instant")));
  }

  return {
    $,
    el,
    unpack,
    meta,
    choices,
    state,
    seen,
    change,
    option,
    hasPair,
    total,
    start,
    goTo,
    listen: (f) => listeners.push(f),
  };
})();
