// What a chart of the explorer holds: lines with intervals, crosses for what has no figure, lines to compare with.
(() => {
  const { meta, state, seen, hasPair, chart, style, word, scaleOf } = page;
  const xsOf = (panel) => page.xs.get(panel);

  /** The cases of each arm that are to be seen in a panel, by T. */
  page.shownArms = (panel) => {
    const { cases } = page;
    return meta.arms
      .map((_, a) => a)
      .filter((a) => hasPair(panel, a))
      .map((a) => ({ a, cases: cases.get(panel * meta.arms.length + a).filter((i) => seen.cases[i]) }));
  };

  /** Traces and layout of a panel under the filter, for a plot of this width; and the arms without any figure. */
  page.contents = (panel, widthPx) => {
    const { data } = page;
    const key = state.options.y,
      quantity = chart.quantities[key],
      isLog = scaleOf() === "log";
    const arms = page.shownArms(panel).filter(({ cases: [i] }) => !(quantity.skipsBaseline && data.base[i]));
    const traces = [],
      lanes = [],
      without = [],
      values = [],
      ends = [];
    for (const { a, cases: of } of arms) {
      const trace = chart.armTrace(data, key, a, of, state.options.intervals === "on");
      traces.push(trace);
      const wrong = quantity.wrong
        ? of.filter((i) => data.texts[data.status[i]] !== "ok" && chart.value(data, key, i) !== null)
        : [];
      const lost = of.filter((i, n) => trace.y[n] === null && !wrong.includes(i));
      const own = [...trace.y.filter((y) => y !== null), ...wrong.map((i) => chart.value(data, key, i))];
      values.push(...own);
      if (quantity.low)
        ends.push(
          ...of
            .flatMap((i, n) => (trace.y[n] === null ? [] : [data[quantity.low][i], data[quantity.high][i]]))
            .filter((v) => v !== null && v > 0),
        );
      if (wrong.length)
        traces.push(
          crosses(
            a,
            wrong,
            wrong.map((i) => chart.value(data, key, i)),
            "y",
            widthPx,
          ),
        );
      if (own.length && lost.length) lanes.push({ a, lost });
      if (!own.length) without.push(`${meta.arms[a].short} (${[...new Set(lost.map(word))].join(", ")})`);
    }
    lanes.forEach(({ a, lost }, n) =>
      traces.push(
        crosses(
          a,
          lost,
          lost.map(() => n),
          "y2",
          widthPx,
        ),
      ),
    );
    return { traces, layout: layout(panel, arms, quantity, isLog, values, ends, lanes), without };
  };

  /** Crosses with a status each, written where it fits: right of its cross, else left, else only the pointer tells. */
  function crosses(a, of, ys, yaxis, widthPx) {
    const { data } = page,
      color = style.color(meta.arms[a]),
      xs = xsOf(meta.rows.panel[of[0]]);
    const scaled = state.options.x === "log" ? Math.log : (x) => x;
    const [first, last] = [scaled(xs[0]), scaled(xs[xs.length - 1])];
    const at = of.map(
      (i) => (last > first ? ((scaled(data.x[i]) - first) / (last - first)) * 0.92 + 0.04 : 0.5) * widthPx,
    );
    let taken = 0; // px up to which the lane is full
    const places = of.map((i, n) => {
      const text = word(i),
        px = 6 * text.length + 10,
        isRepeat = n > 0 && word(of[n - 1]) === text;
      const end = at[n] + px;
      const place = isRepeat
        ? ""
        : end < (n + 1 < of.length ? at[n + 1] - 6 : widthPx + 12)
          ? "right"
          : at[n] - px > taken
            ? "left"
            : "";
      taken = place === "right" ? end : at[n] + 6;
      return place;
    });
    return {
      type: "scatter",
      mode: "markers+text",
      x: of.map((i) => data.x[i]),
      y: ys,
      yaxis,
      customdata: of,
      hoverinfo: "none",
      meta: a,
      cliponaxis: false,
      name: "",
      text: of.map((i, n) => (places[n] === "" ? "" : places[n] === "left" ? `${word(i)} ` : ` ${word(i)}`)),
      textposition: places.map((p) => `middle ${p || "right"}`),
      textfont: { size: 10, color: style.css("--ink") },
      marker: { symbol: "x-thin", size: 8, color, line: { width: 2.2, color } },
    };
  }

  function layout(panel, arms, quantity, isLog, values, ends, lanes) {
    const { delta } = page.data;
    const lanePx = lanes.length ? 15 * lanes.length + 8 : 0,
      plotPx = 280,
      height = plotPx + lanePx + 52;
    const top = plotPx / (plotPx + lanePx);
    const shapes = [],
      annotations = [];
    const muted = style.css("--muted");
    if (quantity.line && values.length) {
      const [at, words] = quantity.line;
      shapes.push({
        type: "line",
        xref: "paper",
        x0: 0,
        x1: 1,
        y0: at,
        y1: at,
        layer: "below",
        line: { color: muted, width: 1, dash: "dot" },
      });
      annotations.push({
        xref: "paper",
        x: 1,
        xanchor: "right",
        yanchor: "bottom",
        y: isLog ? Math.log10(at) : at,
        text: words,
        showarrow: false,
        font: { size: 10, color: muted },
      });
    }
    if (quantity.skipsBaseline && delta) {
      shapes.push({
        type: "rect",
        xref: "paper",
        x0: 0,
        x1: 1,
        y0: 1 / (1 + delta),
        y1: 1 + delta,
        layer: "below",
        line: { width: 0 },
        fillcolor: style.css("--even"),
        opacity: 0.8,
      });
    }
    if (!values.length)
      annotations.push({
        xref: "paper",
        yref: "paper",
        x: 0.5,
        y: 0.5,
        text: "no figure to draw",
        showarrow: false,
        font: { color: muted },
      });
    return chart.base({
      height,
      shapes,
      annotations,
      margin: { l: 66, r: 16, t: 6, b: 44 },
      xaxis: chart.xAxis(xsOf(panel), state.options.x === "log", meta.panels[panel].x),
      yaxis: {
        type: isLog ? "log" : "linear",
        domain: [0, lanes.length ? top - 8 / (plotPx + lanePx) : 1],
        title: { text: quantity.axis, standoff: 8 },
        ...chart.yAxis(quantity, isLog, values, ends),
      },
      ...(lanes.length
        ? {
            yaxis2: {
              domain: [top, 1],
              range: [lanes.length - 0.4, -0.6],
              fixedrange: true,
              showticklabels: false,
              showgrid: true,
              tickvals: lanes.map((_, n) => n),
              gridcolor: style.css("--grid"),
              zeroline: false,
              anchor: "x",
            },
          }
        : {}),
    });
  }
})();
