// What a case says: in the box beside the pointer, in an arm's close-up, and in the table of a chart.
(() => {
  const { $, el, meta, state, chart } = page;
  const tip = $("tip");

  /** Why a case has no figure, in a word. */
  page.word = (i) => (page.text("status", i) === "ok" ? "no figure" : page.text("status", i));
  page.text = (column, i) => page.data.texts[page.data[column][i]];

  /** Names and values of all that is known of a case. */
  function facts(i) {
    const { data } = page,
      text = (column) => page.text(column, i);
    const between = (low, high, words) => (low === null || high === null ? "" : ` (${words(low)} to ${words(high)})`);
    const label = meta.panels[meta.rows.panel[i]].x;
    const found = [[label, data.x[i].toLocaleString("en")]];
    if (text("status") !== "ok") found.push(["status", text("status")]);
    if (data.latency[i] !== null)
      found.push([
        "median",
        chart.ms(data.latency[i]) + between(data.latency_low[i], data.latency_high[i], (v) => chart.number(v)),
      ]);
    if (data.base[i]) found.push(["verdict", "is the baseline"]);
    else if (data.speed[i] !== null)
      found.push(
        ["speed-up", chart.ratio(data.speed[i]) + between(data.speed_low[i], data.speed_high[i], (v) => v.toFixed(2))],
        ["verdict", text("verdict") || "none"],
      );
    if (data.fastest[i]) found.push(["ranked", "★ among the fastest"]);
    if (data.memory[i] !== null)
      found.push([
        "peak memory",
        chart.bytes(data.memory[i]) +
          (data.matrix[i] ? `, ${chart.number(data.memory[i] / data.matrix[i])} score matrices` : ""),
      ]);
    if (data.error[i] !== null)
      found.push([
        "worst row",
        data.error[i].toExponential(1) + (data.limit[i] === null ? "" : ` (allowed ${data.limit[i].toExponential(1)})`),
      ]);
    if (data.fraction[i] !== null) found.push(["of the peak", `${chart.number(100 * data.fraction[i], 2)} %`]);
    found.push(["kernel", text("kernel") || "unknown"]);
    if (text("flags")) found.push(["flags", text("flags")]);
    if (text("reason")) found.push(["reason", text("reason")]);
    const why = data.why[chart.quantities[state.options.y].from || state.options.y].get(i);
    if (why && text("status") === "ok") found.push(["no figure", why]);
    return found;
  }
  page.factList = (i) =>
    el(
      "dl",
      { class: "tip-facts" },
      ...facts(i).map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))),
    );

  page.showTip = function showTip(point, event) {
    const arm = meta.arms[meta.rows.arm[point.customdata]];
    tip.replaceChildren(el("strong", {}, page.swatch(arm), arm.name), page.factList(point.customdata));
    tip.hidden = false;
    const { clientX = 0, clientY = 0 } = event || {},
      box = tip.getBoundingClientRect(),
      gap = 14;
    const left = clientX + gap + box.width > innerWidth ? clientX - gap - box.width : clientX + gap;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(clientY + gap, innerHeight - box.height - 4))}px`;
  };
  page.hideTip = () => {
    tip.hidden = true;
  };
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") page.hideTip();
  });
  addEventListener("scroll", page.hideTip, { passive: true });

  /** The figures of a chart as a table. */
  page.fillTable = (panel, body) => {
    const { data } = page;
    const key = state.options.y,
      quantity = chart.quantities[key],
      xs = page.xs.get(panel);
    const rows = page.shownArms(panel).map(({ a, cases: of }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", text: meta.arms[a].name }),
        ...xs.map((x) => {
          const i = of.find((n) => data.x[n] === x);
          const found = i === undefined ? null : chart.value(data, key, i);
          const status = i === undefined ? "" : data.texts[data.status[i]] === "ok" ? "" : data.texts[data.status[i]];
          return el("td", {
            class: "n",
            text:
              i === undefined
                ? ""
                : found === null
                  ? `✕ ${page.word(i)}`
                  : `${status ? `✕ ${status} ` : ""}${quantity.words(found)}`,
          });
        }),
      ),
    );
    body.replaceChildren(
      el(
        "table",
        {},
        el("caption", { text: `${quantity.label}: ${meta.panels[panel].title}` }),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col", text: "arm" }),
            ...xs.map((x) => el("th", { scope: "col", text: `${meta.panels[panel].x} = ${x}` })),
          ),
        ),
        el("tbody", {}, ...rows),
      ),
    );
  };
})();
