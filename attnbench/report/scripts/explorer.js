// The explorer: one chart per size, dtype and variant that the filter leaves.
(() => {
  const { $, el, meta, seen, chart, scaleOf, state } = page;
  const FIRST = 6; // charts drawn before "show more"
  const root = $("explorer"),
    grid = $("charts"),
    note = $("explorer-note"),
    more = $("more");
  const oneFacet = new Set(meta.panels.map(({ facet }) => facet)).size === 1;
  const figures = new Map(); // panel -> {figure, plot, ...}
  let limit = FIRST,
    drawing = 0;
  page.figures = figures;

  function makeFigure(panel) {
    const { facet, title } = meta.panels[panel];
    const id = `chart-${panel}`;
    const plot = el("div", { class: "plot", "aria-hidden": "true" });
    const heading = el("h3", { id: `${id}-title` });
    const absent = el("p", { class: "muted absent", hidden: true });
    const zoom = el("button", {
      type: "button",
      text: "Whole range",
      hidden: true,
      click: () => {
        figures.get(panel).drawn = "";
        draw();
      },
    });
    const save = el("button", {
      type: "button",
      text: "Save PNG",
      "aria-label": `Save PNG of ${title}`,
      click: () =>
        Plotly.downloadImage(plot, {
          format: "png",
          scale: 2,
          filename: `attnbench-${panel + 1}`,
          width: 900,
          height: 560,
        }),
    });
    const body = el("div", { class: "scroll" });
    const table = el("details", { class: "screen" }, el("summary", { text: "Figures as a table" }), body);
    table.addEventListener("toggle", () => {
      if (table.open) page.fillTable(panel, body);
    });
    const figure = el(
      "figure",
      { "aria-labelledby": `${id}-title` },
      heading,
      plot,
      absent,
      el("figcaption", {}, table, el("span", { class: "buttons" }, zoom, save)),
    );
    heading.append(el("span", { text: title }), ...(oneFacet ? [] : [el("small", { text: facet })]));
    return { figure, plot, absent, zoom, body, table, drawn: "" };
  }

  async function drawOne(panel) {
    const made = figures.get(panel);
    const { traces, layout: wanted, without } = page.contents(panel, Math.max(100, made.plot.clientWidth - 82));
    const drawn = JSON.stringify([traces, wanted]);
    made.absent.hidden = without.length === 0;
    made.absent.textContent = without.length ? `Without a figure: ${without.join("; ")}.` : "";
    if (made.table.open) page.fillTable(panel, made.body);
    if (made.drawn === drawn) return;
    made.drawn = drawn;
    const first = !made.plot.data;
    made.plot.style.height = `${wanted.height}px`;
    await Plotly.react(made.plot, traces, wanted, chart.config);
    made.zoom.hidden = true;
    if (first) listenTo(panel, made);
  }

  function listenTo(panel, { plot, zoom }) {
    plot.on("plotly_hover", ({ points: [point], event }) => page.showTip(point, event));
    plot.on("plotly_unhover", page.hideTip);
    plot.on("plotly_click", ({ points: [point] }) => {
      page.hideTip();
      page.openDetail(meta.rows.arm[point.customdata], panel, point.x);
    });
    plot.on("plotly_relayout", (moved) => {
      if (moved["yaxis.range[0]"] === undefined && moved["xaxis.range[0]"] === undefined && !moved["yaxis.autorange"])
        return;
      zoom.hidden = false;
      if (moved["yaxis.autorange"]) {
        figures.get(panel).drawn = "";
        draw();
        return;
      }
      if (moved["yaxis.range[0]"] === undefined) return;
      const isLog = scaleOf() === "log",
        [low, high] = plot.layout.yaxis.range.map((v) => (isLog ? 10 ** v : v));
      const { tickvals, ticktext } = chart.yTicks(chart.quantities[state.options.y], isLog, low, high);
      Plotly.relayout(plot, { "yaxis.tickvals": tickvals, "yaxis.ticktext": ticktext });
    });
  }

  async function draw() {
    if (!page.canDraw) return;
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
    note.textContent =
      page.total === 0
        ? "There are no records to draw."
        : panels.length === 0
          ? "Nothing matches the filter."
          : hidden
            ? `${shown.length} of ${panels.length} charts.`
            : "";
    more.hidden = hidden === 0;
    more.textContent = `Show ${Math.min(FIRST, hidden)} more`;
    for (const panel of shown) {
      if (mine !== drawing) return;
      await drawOne(panel);
    }
    if (mine === drawing) root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }
  more.addEventListener("click", () => {
    limit += FIRST;
    draw();
  });
  page.draw = draw;
})();
