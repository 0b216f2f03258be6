// The bar of filters: native controls only, drawn from the state.
(() => {
  const { $, el, meta, choices, state, seen, change, total } = page;
  const form = $("filters");
  const MENU_FROM = 5; // more values than this fold into a menu
  const boxes = []; // {key, index, box}
  const summaries = [];

  function toggle(key, values, index, checked) {
    change((s) => {
      const pick = s.picks[key] || new Set(values.keys());
      if (checked) pick.add(index);
      else pick.delete(index);
      s.picks[key] = pick.size === values.length ? null : pick;
    });
  }

  function checkboxes({ key, values }) {
    return values.map((value, index) => {
      const box = el("input", {
        type: "checkbox",
        change: (event) => toggle(key, values, index, event.target.checked),
      });
      boxes.push({ key, index, box });
      return el(
        "label",
        {},
        box,
        ...(key === "arm" ? [page.swatch(meta.arms[index])] : []),
        el("span", { text: value }),
      );
    });
  }

  function menu(choice) {
    const { key, label, values } = choice;
    const words = el("span", { class: "picked" });
    const summary = el("summary", {}, el("span", { text: label, class: "dim" }), " ", words);
    summaries.push({ key, values, words });
    const set = (pick) =>
      change((s) => {
        s.picks[key] = pick;
      });
    const buttons = el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", text: "All", click: () => set(null) }),
      el("button", { type: "button", text: "None", click: () => set(new Set()) }),
    );
    const details = el(
      "details",
      { class: "menu screen", name: "filter" },
      summary,
      el("fieldset", {}, el("legend", { text: label, class: "unseen" }), buttons, ...checkboxes(choice)),
    );
    details.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !details.open) return;
      details.open = false;
      summary.focus();
    });
    return details;
  }

  function chips(choice) {
    return el("fieldset", { class: "chips" }, el("legend", { text: choice.label }), ...checkboxes(choice));
  }

  const search = el("input", {
    type: "search",
    id: "filter",
    placeholder: "e.g. crashed, flash 512",
    autocomplete: "off",
  });
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(
      () =>
        change(
          (s) => {
            s.words = search.value;
          },
          { replace: true },
        ),
      150,
    );
  });
  const count = el("output", { id: "shown" });
  const reset = el("button", {
    type: "button",
    id: "reset",
    text: "Reset",
    click: () => {
      change((s) => {
        for (const key of Object.keys(s.picks)) s.picks[key] = null;
        s.words = "";
      });
    },
  });
  const fold = el("button", {
    type: "button",
    id: "fold",
    "aria-expanded": "false",
    "aria-controls": "controls",
    text: "Filter",
  });
  fold.addEventListener("click", () => {
    fold.setAttribute("aria-expanded", form.classList.toggle("open"));
  });
  const controls = el(
    "div",
    { id: "controls" },
    ...choices.map((choice) =>
      choice.values.length > MENU_FROM || choice.key === "arm" ? menu(choice) : chips(choice),
    ),
    el("label", { class: "search" }, el("span", { text: "search" }), search),
  );
  form.append(fold, controls, el("div", { class: "end" }, count, reset));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    for (const details of form.querySelectorAll("details[open]"))
      if (!details.contains(event.target)) details.open = false;
  });
  form.hidden = false;

  page.listen(() => {
    for (const { key, index, box } of boxes) box.checked = !state.picks[key] || state.picks[key].has(index);
    for (const { key, values, words } of summaries) {
      const pick = state.picks[key];
      words.textContent = !pick ? "all" : pick.size === 1 ? values[[...pick][0]] : `${pick.size} of ${values.length}`;
    }
    if (document.activeElement !== search || search.value.trim() !== state.words.trim()) search.value = state.words;
    const active = Object.values(state.picks).filter(Boolean).length + (state.words ? 1 : 0);
    const text = active
      ? `${seen.count.toLocaleString("en")} of ${total.toLocaleString("en")} cases`
      : `${total.toLocaleString("en")} case${total === 1 ? "" : "s"}`;
    if (count.textContent !== text) count.textContent = text;
    reset.disabled = active === 0;
    fold.textContent = active ? `Filter (${active})` : "Filter";
  });
})();
