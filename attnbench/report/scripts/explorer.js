// The explorer: one chart per size, dtype and variant that the filter leaves, and the list of arms beside them.
(() => {
  const { $, el, meta, state, seen, change, option, hasPair, chart, style } = page;
  const FIRST = 6;  // charts drawn before "show more"
  const root = $("explorer"), grid = $("charts"), note = $("explorer-note"), more = $("more"), tip = $("tip");
  const figures = new Map();  // panel -> {figure, plot, ...}
  const oneFacet = new Set(meta.panels.map(({ facet }) => facet)).size === 1;
  let data = null, cases = null, limit = FIRST, drawing = 0;

  option("y", "latency", Object.keys(chart.quantities));
  option("x", "log", ["log", "linear"]);
  option("scale", "usual", ["usual", "log", "linear"]);
  option("intervals", "on", ["on", "off"]);

  const scaleOf = () => (state.options.scale === "usual" ? chart.quantities[state.options.y].scale : state.options.scale);

  // ---- controls

  function radios(legend, name, read, write) {
    const inputs = ["log", "linear"].map((value) => el("input", { type: "radio", name, value, change: () => write(value) }));
    page.listen(() => { for (const input of inputs) input.checked = input.value === read(); });
    return el("fieldset", { class: "chips" }, el("legend", { text: legend }),
      ...inputs.map((input) => el("label", {}, input, el("span", { text: input.value === "log" ? "logarithmic" : "linear" }))));
  }
  const set = (name, value) => change((s) => { s.options[name] = value; });
  const pickY = el("select", { id: "quantity", change: () => change((s) => { s.options.y = pickY.value; s.options.scale = "usual"; }) },
    ...Object.entries(chart.quantities).map(([key, { label }]) => el("option", { value: key, text: label })));
  const bars = el("input", { type: "checkbox", change: () => set("intervals", bars.checked ? "on" : "off") });
  $("explorer-controls").append(
    el("label", {}, el("span", { text: "show" }), pickY),
    radios("across", "x-scale", () => state.options.x, (value) => set("x", value)),
    radios("up", "y-scale", scaleOf, (value) => set("scale", value === chart.quantities[state.options.y].scale ? "usual" : value)),
    el("label", { class: "chip" }, bars, el("span", { text: "intervals" })));
  page.listen(() => {
    pickY.value = state.options.y;
    bars.checked = state.options.intervals === "on";
    bars.disabled = !chart.quantities[state.options.y].low;
  });

  // ---- the list of arms is the legend

  const legendRows = meta.arms.map((arm, a) => {
    const box = el("input", { type: "checkbox", "aria-label": `draw ${arm.name}`, change: () => change((s) => {
      const pick = s.picks.arm || new Set(meta.arms.keys());
      if (box.checked) pick.add(a); else pick.delete(a);
      s.picks.arm = pick.size === meta.arms.length ? null : pick;
    }) });
    const open = el("button", { type: "button", class: "arm", "aria-haspopup": "dialog", title: "samples and law of this arm", click: () => page.openDetail(a) }, page.swatch(arm), el("span", { text: arm.name }));
    const only = el("button", { type: "button", class: "only", text: "only", "aria-label": `only ${arm.name}`, click: () => change((s) => { s.picks.arm = new Set([a]); }) });
    const row = el("li", {}, box, open, only);
    for (const [event, on] of [["mouseenter", true], ["focusin", true], ["mouseleave", false], ["focusout", false]]) row.addEventListener(event, () => highlight(on ? a : null));
    return { row, box };
  });
  const all = el("button", { type: "button", text: "All arms", click: () => change((s) => { s.picks.arm = null; }) });
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

  function highlight(a) {
    for (const { plot } of figures.values()) {
      plot.querySelectorAll(".scatterlayer .trace").forEach((trace, n) => {
        const drawn = plot.data && plot.data[n];
        trace.style.opacity = a === null || !drawn || drawn.meta === a ? "" : "0.12";
      });
    }
  }

  // ---- charts

  function makeFigure(panel) {
    const { facet, title } = meta.panels[panel];
    const id = `chart-${panel}`;
    const plot = el("div", { class: "plot", "aria-hidden": "true" });
    const heading = el("h3", { id: `${id}-title` });
    const absent = el("p", { class: "muted absent", hidden: true });
    const zoom = el("button", { type: "button", text: "Whole range", hidden: true, click: () => { figures.get(panel).drawn = ""; draw(); } });
    const save = el("button", { type: "button", text: "Save PNG", "aria-label": `Save ${title} as PNG`, click: () => Plotly.downloadImage(plot, { format: "png", scale: 2, filename: `attnbench-${panel + 1}`, width: 900, height: 560 }) });
    const body = el("div", { class: "scroll" });
    const table = el("details", { class: "screen" }, el("summary", { text: "Figures as a table" }), body);
    table.addEventListener("toggle", () => { if (table.open) fillTable(panel, body); });
    const figure = el("figure", { role: "group", "aria-labelledby": `${id}-title` }, heading, plot, absent, el("figcaption", {}, table, el("span", { class: "buttons" }, zoom, save)));
    heading.append(el("span", { text: title }), ...(oneFacet ? [] : [el("small", { text: facet })]));
    return { figure, plot, absent, zoom, body, table, drawn: "" };
  }

  /** The cases of each arm that are to be seen in a panel, by T. */
  function shownArms(panel) {
    return meta.arms.map((_, a) => a).filter((a) => hasPair(panel, a))
      .map((a) => ({ a, cases: cases.get(panel * meta.arms.length + a).filter((i) => seen.cases[i]) }));
  }

  function contents(panel) {
    const key = state.options.y, quantity = chart.quantities[key], isLog = scaleOf() === "log";
    const arms = shownArms(panel).filter(({ cases: [i] }) => !(quantity.skipsBaseline && data.base[i]));
    const widthPx = Math.max(100, figures.get(panel).plot.clientWidth - 82);
    const traces = [], lanes = [], without = [], values = [], ends = [];
    for (const { a, cases: of } of arms) {
      const trace = chart.armTrace(data, key, a, of, state.options.intervals === "on");
      traces.push(trace);
      const wrong = quantity.wrong ? of.filter((i) => data.texts[data.status[i]] !== "ok" && chart.value(data, key, i) !== null) : [];
      const lost = of.filter((i, n) => trace.y[n] === null && !wrong.includes(i));
      const own = [...trace.y.filter((y) => y !== null), ...wrong.map((i) => chart.value(data, key, i))];
      values.push(...own);
      if (quantity.low) ends.push(...of.flatMap((i, n) => (trace.y[n] === null ? [] : [data[quantity.low][i], data[quantity.high][i]])).filter((v) => v !== null && v > 0));
      if (wrong.length) traces.push(crosses(a, wrong, wrong.map((i) => chart.value(data, key, i)), "y", widthPx));
      if (own.length && lost.length) lanes.push({ a, lost });
      if (!own.length) without.push(`${meta.arms[a].short} (${[...new Set(lost.map(word))].join(", ")})`);
    }
    lanes.forEach(({ a, lost }, n) => traces.push(crosses(a, lost, lost.map(() => n), "y2", widthPx)));
    return { traces, layout: layout(panel, arms, quantity, isLog, values, ends, lanes), without };
  }

  const word = (i) => (data.texts[data.status[i]] === "ok" ? "no figure" : data.texts[data.status[i]]);

  /** Crosses with a status each, written where it fits: right of its cross, else left, else only the pointer tells. */
  function crosses(a, of, ys, yaxis, widthPx) {
    const color = style.color(meta.arms[a]), xs = xsOf(meta.rows.panel[of[0]]);
    const scaled = state.options.x === "log" ? Math.log : (x) => x;
    const [first, last] = [scaled(xs[0]), scaled(xs[xs.length - 1])];
    const at = of.map((i) => (last > first ? ((scaled(data.x[i]) - first) / (last - first)) * 0.92 + 0.04 : 0.5) * widthPx);
    let taken = 0;  // px up to which the lane is full
    const places = of.map((i, n) => {
      const text = word(i), px = 6 * text.length + 10, isRepeat = n > 0 && word(of[n - 1]) === text;
      const end = at[n] + px;
      const place = isRepeat ? "" : end < (n + 1 < of.length ? at[n + 1] - 6 : widthPx + 12) ? "right" : at[n] - px > taken ? "left" : "";
      taken = place === "right" ? end : at[n] + 6;
      return place;
    });
    return { type: "scatter", mode: "markers+text", x: of.map((i) => data.x[i]), y: ys, yaxis, customdata: of, hoverinfo: "none", meta: a, cliponaxis: false, name: "",
      text: of.map((i, n) => (places[n] === "" ? "" : places[n] === "left" ? `${word(i)} ` : ` ${word(i)}`)), textposition: places.map((p) => `middle ${p || "right"}`), textfont: { size: 10, color: style.css("--ink") },
      marker: { symbol: "x-thin", size: 8, color, line: { width: 2.2, color } } };
  }

  const xsOf = (panel) => page.xs.get(panel);

  function layout(panel, arms, quantity, isLog, values, ends, lanes) {
    const lanePx = lanes.length ? 15 * lanes.length + 8 : 0, plotPx = 280, height = plotPx + lanePx + 52;
    const top = plotPx / (plotPx + lanePx);
    const shapes = [], annotations = [];
    const muted = style.css("--muted");
    if (quantity.line && values.length) {
      const [at, words] = quantity.line;
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, layer: "below", line: { color: muted, width: 1, dash: "dot" } });
      annotations.push({ xref: "paper", x: 1, xanchor: "right", yanchor: "bottom", y: isLog ? Math.log10(at) : at, text: words, showarrow: false, font: { size: 10, color: muted } });
    }
    if (quantity.skipsBaseline && data.delta) {
      shapes.push({ type: "rect", xref: "paper", x0: 0, x1: 1, y0: 1 / (1 + data.delta), y1: 1 + data.delta, layer: "below", line: { width: 0 }, fillcolor: style.css("--even"), opacity: 0.8 });
    }
    if (!values.length) annotations.push({ xref: "paper", yref: "paper", x: 0.5, y: 0.5, text: "no figure to draw", showarrow: false, font: { color: muted } });
    return chart.base({
      height, shapes, annotations, margin: { l: 66, r: 16, t: 6, b: 44 },
      xaxis: chart.xAxis(xsOf(panel), state.options.x === "log", meta.panels[panel].x),
      yaxis: { type: isLog ? "log" : "linear", domain: [0, lanes.length ? top - 8 / (plotPx + lanePx) : 1], title: { text: quantity.axis, standoff: 8 }, ...chart.yAxis(quantity, isLog, values, ends) },
      ...(lanes.length ? { yaxis2: { domain: [top, 1], range: [lanes.length - 0.4, -0.6], fixedrange: true, showticklabels: false, showgrid: true, tickvals: lanes.map((_, n) => n), gridcolor: style.css("--grid"), zeroline: false, anchor: "x" } } : {}),
    });
  }

  async function drawOne(panel) {
    const made = figures.get(panel);
    const { traces, layout: wanted, without } = contents(panel);
    const drawn = JSON.stringify([traces, wanted]);
    made.absent.hidden = without.length === 0;
    made.absent.textContent = without.length ? `Without a figure: ${without.join("; ")}.` : "";
    if (made.table.open) fillTable(panel, made.body);
    if (made.drawn === drawn) return;
    made.drawn = drawn;
    const first = !made.plot.data;
    made.plot.style.height = `${wanted.height}px`;
    await Plotly.react(made.plot, traces, wanted, chart.config);
    made.zoom.hidden = true;
    if (first) listenTo(panel, made);
  }

  function listenTo(panel, { plot, zoom }) {
    plot.on("plotly_hover", ({ points: [point], event }) => showTip(point, event));
    plot.on("plotly_unhover", hideTip);
    plot.on("plotly_click", ({ points: [point] }) => { hideTip(); page.openDetail(meta.rows.arm[point.customdata], panel, point.x); });
    plot.on("plotly_relayout", (moved) => {
      if (moved["yaxis.range[0]"] === undefined && moved["xaxis.range[0]"] === undefined && !moved["yaxis.autorange"]) return;
      zoom.hidden = false;
      if (moved["yaxis.autorange"]) { figures.get(panel).drawn = ""; draw(); return; }
      if (moved["yaxis.range[0]"] === undefined) return;
      const isLog = scaleOf() === "log", [low, high] = plot.layout.yaxis.range.map((v) => (isLog ? 10 ** v : v));
      const { tickvals, ticktext } = chart.yTicks(chart.quantities[state.options.y], isLog, low, high);
      Plotly.relayout(plot, { "yaxis.tickvals": tickvals, "yaxis.ticktext": ticktext });
    });
  }

  async function draw() {
    if (!data) return;
    const mine = ++drawing;
    const panels = meta.panels.map((_, p) => p).filter((p) => seen.panels[p]);
    const shown = panels.slice(0, limit);
    for (const [panel, { figure }] of figures) figure.hidden = !shown.includes(panel);
    for (const panel of shown) {
      if (!figures.has(panel)) {
        figures.set(panel, makeFigure(panel));
        const next = [...figures].filter(([p]) => p > panel).sort(([p], [q]) => p - q)[0];
        grid.insertBefore(figures.get(panel).figure, next ? next[1].figure : null);
      }
    }
    const hidden = panels.length - shown.length;
    note.textContent = page.total === 0 ? "There are no records to draw." : panels.length === 0 ? "Nothing matches the filter." : hidden ? `${shown.length} of ${panels.length} charts.` : "";
    more.hidden = hidden === 0;
    more.textContent = `Show ${Math.min(FIRST, hidden)} more`;
    for (const panel of shown) {
      if (mine !== drawing) return;
      await drawOne(panel);
    }
    if (mine === drawing) root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }
  more.addEventListener("click", () => { limit += FIRST; draw(); });

  // ---- what a point says

  function facts(i) {
    const text = (column) => data.texts[data[column][i]];
    const between = (low, high, words) => (low === null || high === null ? "" : ` (${words(low)} to ${words(high)})`);
    const label = meta.panels[meta.rows.panel[i]].x;
    const found = [[label, data.x[i].toLocaleString("en")]];
    if (text("status") !== "ok") found.push(["status", text("status")]);
    if (data.latency[i] !== null) found.push(["median", chart.ms(data.latency[i]) + between(data.latency_low[i], data.latency_high[i], (v) => chart.number(v))]);
    if (data.base[i]) found.push(["verdict", "is the baseline"]);
    else if (data.speed[i] !== null) found.push(["speed-up", chart.ratio(data.speed[i]) + between(data.speed_low[i], data.speed_high[i], (v) => v.toFixed(2))], ["verdict", text("verdict") || "none"]);
    if (data.fastest[i]) found.push(["ranked", "★ among the fastest"]);
    if (data.memory[i] !== null) found.push(["peak memory", `${chart.bytes(data.memory[i])}, ${chart.number(data.memory[i] / data.matrix[i])} score matrices`]);
    if (data.error[i] !== null) found.push(["worst row", data.error[i].toExponential(1) + (data.limit[i] === null ? "" : ` (allowed ${data.limit[i].toExponential(1)})`)]);
    if (data.fraction[i] !== null) found.push(["of the peak", `${chart.number(100 * data.fraction[i], 2)} %`]);
    found.push(["kernel", text("kernel") || "unknown"]);
    if (text("flags")) found.push(["flags", text("flags")]);
    if (text("reason")) found.push(["reason", text("reason")]);
    const why = data.why[page.chart.quantities[state.options.y].from || state.options.y].get(i);
    if (why && text("status") === "ok") found.push(["no figure", why]);
    return found;
  }
  page.facts = facts;
  page.factList = (i) => el("dl", { class: "tip-facts" }, ...facts(i).map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));

  function showTip(point, event) {
    const arm = meta.arms[meta.rows.arm[point.customdata]];
    tip.replaceChildren(el("strong", {}, page.swatch(arm), arm.name), page.factList(point.customdata));
    tip.hidden = false;
    const { clientX = 0, clientY = 0 } = event || {}, box = tip.getBoundingClientRect(), gap = 14;
    const left = clientX + gap + box.width > innerWidth ? clientX - gap - box.width : clientX + gap;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(clientY + gap, innerHeight - box.height - 4))}px`;
  }
  function hideTip() { tip.hidden = true; }
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });

  function fillTable(panel, body) {
    const key = state.options.y, quantity = chart.quantities[key], xs = xsOf(panel);
    const rows = shownArms(panel).map(({ a, cases: of }) => el("tr", {}, el("th", { scope: "row", text: meta.arms[a].name }), ...xs.map((x) => {
      const i = of.find((n) => data.x[n] === x);
      const found = i === undefined ? null : chart.value(data, key, i);
      const status = i === undefined ? "" : data.texts[data.status[i]] === "ok" ? "" : data.texts[data.status[i]];
      return el("td", { class: "n", text: i === undefined ? "" : found === null ? `✕ ${word(i)}` : `${status ? `✕ ${status} ` : ""}${quantity.words(found)}` });
    })));
    body.replaceChildren(el("table", {}, el("caption", { text: `${quantity.label}: ${meta.panels[panel].title}` }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "arm" }), ...xs.map((x) => el("th", { scope: "col", text: `${meta.panels[panel].x} = ${x}` })))), el("tbody", {}, ...rows)));
  }

  // ---- start: unpack, run Plotly, draw

  async function load() {
    if (!("DecompressionStream" in window)) {
      note.textContent = "This browser cannot unpack the charts: it has no DecompressionStream (Chrome 80, Firefox 113 and Safari 16.4 have it). The pictures and tables below are complete.";
      return;
    }
    data = JSON.parse(await page.unpack("data"));
    data.why = Object.fromEntries(Object.entries(data.empty).map(([name, pairs]) => [name, new Map(pairs.map(([i, t]) => [i, data.texts[t]]))]));
    cases = new Map();
    page.xs = new Map();
    for (let i = 0; i < page.total; i++) {
      const pair = meta.rows.panel[i] * meta.arms.length + meta.rows.arm[i];
      if (!cases.has(pair)) cases.set(pair, []);
      cases.get(pair).push(i);
    }
    for (const of of cases.values()) of.sort((i, j) => data.x[i] - data.x[j]);
    meta.panels.forEach((_, p) => page.xs.set(p, []));
    for (let i = 0; i < page.total; i++) page.xs.get(meta.rows.panel[i]).push(data.x[i]);
    for (const [p, xs] of page.xs) page.xs.set(p, [...new Set(xs)].sort((a, b) => a - b));
    page.data = data;
    page.cases = cases;
    if (!$("plotly").textContent.trim()) {
      note.textContent = "This report was written without Plotly, so there are no charts to explore here: pip install plotly, then attnbench report again. The pictures and tables below are complete.";
      data = null;
      return;
    }
    document.head.append(el("script", { text: await page.unpack("plotly") }));
    root.classList.add("ready");
    page.listen(() => { draw(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    await draw();
    page.isReady = true;
    page.dataReady();
  }
  page.load = load;
})();
