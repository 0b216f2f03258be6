// What is drawn and how: the controls of the explorer, and the list of arms, which is the legend.
(() => {
  const { $, el, meta, state, change, option, chart } = page;

  option("y", "latency", Object.keys(chart.quantities));
  option("x", "log", ["log", "linear"]);
  option("scale", "usual", ["usual", "log", "linear"]);
  option("intervals", "on", ["on", "off"]);

  const usual = () => chart.quantities[state.options.y].scale;
  page.scaleOf = () => (state.options.scale === "usual" ? usual() : state.options.scale);

  // ---- controls

  function radios(legend, name, read, write) {
    const inputs = ["log", "linear"].map((value) =>
      el("input", { type: "radio", name, value, change: () => write(value) }),
    );
    page.listen(() => {
      for (const input of inputs) input.checked = input.value === read();
    });
    return el(
      "fieldset",
      { class: "chips" },
      el("legend", { text: legend }),
      ...inputs.map((input) =>
        el("label", {}, input, el("span", { text: input.value === "log" ? "logarithmic" : "linear" })),
      ),
    );
  }
  const set = (name, value) =>
    change((s) => {
      s.options[name] = value;
    });
  const pickY = el(
    "select",
    {
      id: "quantity",
      change: () =>
        change((s) => {
          s.options.y = pickY.value;
          s.options.scale = "usual";
        }),
    },
    ...Object.entries(chart.quantities).map(([key, { label }]) => el("option", { value: key, text: label })),
  );
  const bars = el("input", { type: "checkbox", change: () => set("intervals", bars.checked ? "on" : "off") });
  $("explorer-controls").append(
    el("label", {}, el("span", { text: "show" }), pickY),
    radios(
      "across",
      "x-scale",
      () => state.options.x,
      (value) => set("x", value),
    ),
    radios("up", "y-scale", page.scaleOf, (value) => set("scale", value === usual() ? "usual" : value)),
    el("label", { class: "chip" }, bars, el("span", { text: "intervals" })),
  );
  page.listen(() => {
    pickY.value = state.options.y;
    bars.checked = state.options.intervals === "on";
    bars.disabled = !chart.quantities[state.options.y].low;
  });

  // ---- the list of arms is the legend

  const legendRows = meta.arms.map((arm, a) => {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `draw ${arm.name}`,
      change: () =>
        change((s) => {
          const pick = s.picks.arm || new Set(meta.arms.keys());
          if (box.checked) pick.add(a);
          else pick.delete(a);
          s.picks.arm = pick.size === meta.arms.length ? null : pick;
        }),
    });
    const open = el(
      "button",
      {
        type: "button",
        class: "arm",
        "aria-haspopup": "dialog",
        title: "samples and law of this arm",
        click: () => page.openDetail(a),
      },
      page.swatch(arm),
      el("span", { text: arm.name }),
    );
    const only = el("button", {
      type: "button",
      class: "only",
      text: "only",
      "aria-label": `only ${arm.name}`,
      click: () =>
        change((s) => {
          s.picks.arm = new Set([a]);
        }),
    });
    const row = el("li", {}, box, open, only);
    for (const [event, on] of [
      ["mouseenter", true],
      ["focusin", true],
      ["mouseleave", false],
      ["focusout", false],
    ])
      row.addEventListener(event, () => highlight(on ? a : null));
    return { row, box };
  });
  const all = el("button", {
    type: "button",
    text: "All arms",
    click: () =>
      change((s) => {
        s.picks.arm = null;
      }),
  });
  $("legend-list").append(...legendRows.map(({ row }) => row));
  $("legend-buttons").append(all);
  if (matchMedia("(max-width: 800px)").matches) $("legend").open = false;
  page.listen(() => {
    legendRows.forEach(({ row, box }, a) => {
      box.checked = !state.picks.arm || state.picks.arm.has(a);
      row.classList.toggle("off", !box.checked);
    });
    all.disabled = !state.picks.arm;
  });

  /** Fade all but one arm in the charts; null: none. */
  function highlight(a) {
    for (const { plot } of page.figures.values()) {
      plot.querySelectorAll(".scatterlayer .trace").forEach((trace, n) => {
        const drawn = plot.data && plot.data[n];
        trace.style.opacity = a === null || !drawn || drawn.meta === a ? "" : "0.12";
      });
    }
  }
})();
